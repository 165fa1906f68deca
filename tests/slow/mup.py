#!/usr/bin/env python3
"""The best learning rate of recipes/sweeps/mup.lua is the same at each width, by the validation loss, and wider models learn
more with it. Rates are factors of two apart: the best one is the vertex of a parabola through the lowest loss and its neighbours,
over the logarithm of the rate. It would fall by a factor of four without muP, as weights' own rates do with the width."""

import collections
import json
import math
import os
import pathlib
import subprocess
import tempfile



def best_rate(by_rate):
    rates = sorted(by_rate)
    at = min(range(1, len(rates) - 1), key=lambda i: by_rate[rates[i]])
    below, lowest, above = (by_rate[rates[at + i]] for i in (-1, 0, 1))
    assert lowest < min(below, above), f"no rate of {rates} is between worse ones"
    steps = (below - above) / (2 * (below + above - 2 * lowest))
    return rates[at] * math.exp(steps * math.log(rates[at + 1] / rates[at]))


recipe = pathlib.Path(os.environ["MEGAHOST_SOURCE"]) / "recipes/sweeps/mup.lua"
with tempfile.TemporaryDirectory(prefix="megahost-mup-") as folder:
    words = [os.environ["MEGAHOST"], "sweep", str(recipe), "--run-dir", "mup", "--json"]
    printed = subprocess.run(words, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout
losses = collections.defaultdict(dict)
for point in json.loads(printed):
    values = point["values"]
    losses[values["model.hidden"]][values["optimizer.lr"]] = point["validation_loss"]
for width, by_rate in losses.items():
    print(width, by_rate)
assert len(losses) == 3 and all(len(by_rate) == 5 for by_rate in losses.values()), losses
best = {width: best_rate(by_rate) for width, by_rate in losses.items()}
print("best rates", best)
assert max(best.values()) <= 1.5 * min(best.values()), best
lowest = [min(losses[width].values()) for width in sorted(losses)]
assert lowest == sorted(lowest, reverse=True), lowest
