#!/usr/bin/env python3
"""A run that goes on with fewer and more ranks than its layout needs: parallel.elastic says how, and the numbers stay those of a run
that had the same ranks all the time."""

import json
import os
import pathlib
import re
import subprocess
import tempfile

PROGRAM = os.environ["MEGAHOST"]
folder = pathlib.Path(tempfile.mkdtemp(prefix="megahost-elastic-"))
RECIPE = """
name = "tiny"
precision = "fp32"
model = { use = "llama", layers = 2, hidden = 32, heads = 4, seq_length = 16 }
data = { use = "mock" }
batch = { global = 4, micro = 1 }
parallel = { tensor = 2, data = 2, elastic = ["tensor=1,data=2", "tensor=1,pipeline=1,data=auto"] }
train = { iters = 6 }
checkpoint = { interval = 1 }
log = { interval = 1, tensorboard = false }
"""
(folder / "tiny.toml").write_text(RECIPE)


def run(ranks, name, *words, recipe="tiny.toml"):
    return subprocess.run([PROGRAM, "run", recipe, "--run-dir", name, "--nproc", str(ranks), *words], cwd=folder, capture_output=True,
                          text=True)


def losses(name):
    records = map(json.loads, (folder / name / "metrics.jsonl").read_text().splitlines())
    return [record["losses"]["lm loss"] for record in records if "losses" in record]


whole = run(4, "whole")
assert whole.returncode == 0 and "elastic" not in whole.stderr, whole
assert run(4, "moving", "--set", "train.exit_iters=2").returncode == 0
for ranks, steps, layout in ((2, 4, "tensor=1,data=2"), (1, 5, "tensor=1,pipeline=1,data=auto"), (4, 6, None)):
    # The same command each time, as a launcher that starts a run again gives it.
    result = run(ranks, "moving", "--resume=auto", "--set", f"train.exit_iters={steps}")
    assert result.returncode == 0, result
    note = f"warning: the recipe's own layout does not fit {ranks} rank{'s' * (ranks > 1)}: its parallel.elastic \"{layout}\" does"
    assert (note in result.stderr) == (layout is not None), result.stderr
expected, found = losses("whole"), losses("moving")
assert len(found) == 6 and max(abs(a - b) / a for a, b in zip(expected, found)) < 1e-5, (expected, found)

# Ranks that no layout of the list fits, and the fastest of a search does: of three, with another microbatch and the same batch.
SEARCHED = RECIPE.replace("global = 4", "global = 12").replace('data=auto"]', 'data=2", "plan"]')
(folder / "searched.toml").write_text(SEARCHED)
assert run(4, "twelve", recipe="searched.toml").returncode == 0
assert run(4, "found", "--set", "train.exit_iters=2", recipe="searched.toml").returncode == 0
result = run(3, "found", "--resume=auto", recipe="searched.toml")
assert result.returncode == 0, result
note = re.search(r"does not fit 3 ranks: its parallel.elastic \"plan: (.*)\" does", result.stderr)
assert note and "parallel.data=3" in note[1] and "batch.micro=" in note[1], result.stderr
expected, found = losses("twelve"), losses("found")
assert len(found) == 6 and max(abs(a - b) / a for a, b in zip(expected, found)) < 1e-5, (expected, found)

# Ranks that no layout fits: what the recipe's own is refused for.
refused = run(3, "three")
assert refused.returncode == 2 and "the layout has" not in refused.stdout and "3" in refused.stderr, refused
refused = run(7, "seven", recipe="searched.toml")
assert refused.returncode == 2 and "7" in refused.stderr, refused
# A global batch that would change with the ranks.
(folder / "any.toml").write_text(RECIPE.replace("global = 4, ", ""))
refused = run(2, "any", recipe="any.toml")
assert refused.returncode == 2 and "as batch.global is not given" in refused.stderr, refused
print(refused.stderr)
