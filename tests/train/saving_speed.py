#!/usr/bin/env python3
"""Steps of a run that saves every 10 steps, in the background and before it goes on, against those of one that never saves.

usage: saving_speed.py [--recipe FILE] [--steps N] [--rounds N] [--interval N] [--folder DIR] [--set KEY=VALUE]...

The kinds take turns, so that what else the machine does meets all of them. What counts is the ratio of the medians of the time
from one line of the log to the next. What a save holds up the step, and how long it then goes on, is printed too: where that is
longer than steps between two saves, the disk is the bound, and a folder in memory (--folder /dev/shm) shows what else saves cost.
Nothing here fails by its time.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import tempfile
import time

parser = argparse.ArgumentParser()
parser.add_argument("--recipe", default=os.environ.get("MEGAHOST_SOURCE", ".") + "/recipes/quickstart.lua")
parser.add_argument("--steps", type=int, default=110)
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--interval", type=int, default=10)
parser.add_argument("--folder", help="where run folders are made; default: that of temporary files")
parser.add_argument("--set", action="append", default=[])
options = parser.parse_args()

KINDS = {
    "none": ["checkpoint.interval=0"],
    "blocking": [f"checkpoint.interval={options.interval}", "checkpoint.async=false"],
    "background": [f"checkpoint.interval={options.interval}", "checkpoint.async=true"],
}
found = {kind: [] for kind in KINDS}
held_up, behind = {kind: [] for kind in KINDS}, {kind: [] for kind in KINDS}  # milliseconds of each save


def windows(kind, folder):
    """Seconds between the lines of steps 10, 20, 30, ...: each with one save, but for those of none."""
    sets = [*KINDS[kind], "checkpoint.keep=2", "checkpoint.save_at_end=false", "train.eval_interval=0",
            f"log.interval={options.interval}", f"train.iters={options.steps}", *options.set]
    words = [word for setting in sets for word in ("--set", setting)]
    command = [os.environ["MEGAHOST"], "run", options.recipe, "--run-dir", folder, "--log-format", "json", *words]
    times = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            told = json.loads(line) if line.startswith("{") else {}
            if "losses" in told:
                times.append(time.monotonic())
            if save := re.search(r"saved in .* \| (\d+) ms(?:, then (\d+) ms)?", told.get("note", "")):
                held_up[kind].append(int(save[1]))
                behind[kind].append(int(save[2] or 0))
    assert process.returncode == 0, process.returncode
    return [later - earlier for earlier, later in zip(times, times[1:])]


for number in range(options.rounds):
    for kind in KINDS:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            found[kind] += windows(kind, folder + "/run")
none = statistics.median(found["none"])
for kind, times in found.items():
    middle = statistics.median(times)
    print(f"{kind:10} {1e3 * middle / options.interval:8.2f} ms a step, {middle / none:.3f} of none, "
          f"over {len(times)} times {options.interval} steps")
    if held_up[kind]:
        print(f"           a save holds up a step for {statistics.median(held_up[kind]):.0f} ms and goes on for "
              f"{statistics.median(behind[kind]):.0f} ms, at most {max(behind[kind])}")
