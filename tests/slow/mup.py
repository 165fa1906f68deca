#!/usr/bin/env python3
"""The best learning rate of recipes/sweeps/mup.lua is the same at each width, by the validation loss, and wider models learn
more with it."""

import collections
import json
import os
import pathlib
import subprocess
import tempfile

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
best = {width: min(by_rate, key=by_rate.get) for width, by_rate in losses.items()}
assert len(set(best.values())) == 1, best
lowest = [min(losses[width].values()) for width in sorted(losses)]
assert lowest == sorted(lowest, reverse=True), lowest
