#!/usr/bin/env python3
"""Steps of a run that saves every 10 steps, in the background and before it goes on, against those of one that never saves.

usage: saving_speed.py [--recipe FILE] [--steps N] [--rounds N] [--interval N] [--set KEY=VALUE]...

The kinds take turns, so that what else the machine does meets all of them. What counts is the ratio of the medians of the time
from one line of the log to the next. Nothing here fails by its time.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time

parser = argparse.ArgumentParser()
parser.add_argument("--recipe", default=os.environ.get("MEGAHOST_SOURCE", ".") + "/recipes/quickstart.lua")
parser.add_argument("--steps", type=int, default=110)
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--interval", type=int, default=10)
parser.add_argument("--set", action="append", default=[])
options = parser.parse_args()

KINDS = {
    "none": ["checkpoint.interval=0"],
    "blocking": [f"checkpoint.interval={options.interval}", "checkpoint.async=false"],
    "background": [f"checkpoint.interval={options.interval}", "checkpoint.async=true"],
}


def windows(kind, folder):
    """Seconds between the lines of steps 10, 20, 30, ...: each with one save, but for those of none."""
    sets = [*KINDS[kind], "checkpoint.keep=2", "checkpoint.save_at_end=false", "train.eval_interval=0",
            f"log.interval={options.interval}", f"train.iters={options.steps}", *options.set]
    words = [word for setting in sets for word in ("--set", setting)]
    command = [os.environ["MEGAHOST"], "run", options.recipe, "--run-dir", folder, "--log-format", "json", *words]
    times = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("{") and "losses" in json.loads(line):
                times.append(time.monotonic())
    assert process.returncode == 0, process.returncode
    return [later - earlier for earlier, later in zip(times, times[1:])]


found = {kind: [] for kind in KINDS}
for number in range(options.rounds):
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            found[kind] += windows(kind, folder + "/run")
none = statistics.median(found["none"])
for kind, times in found.items():
    middle = statistics.median(times)
    print(f"{kind:10} {1e3 * middle / options.interval:8.2f} ms a step, {middle / none:.3f} of none, "
          f"over {len(times)} times {options.interval} steps")
