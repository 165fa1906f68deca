#!/usr/bin/env python3
"""How long plans take, next to what they may take on two cores; memory of the plan of 1008 billion parameters."""

import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

MOST = {"plan": 5, "search": 60, "sweep": 30}  # seconds
FEWEST_LAYOUTS = 1000


def timed(*words):
    begin = time.perf_counter()
    done = subprocess.run([os.environ["MEGAHOST"], *map(str, words)], capture_output=True, text=True,
                          cwd=os.environ["MEGAHOST_SOURCE"])
    assert done.returncode == 0, done
    return time.perf_counter() - begin, done.stdout


def main(folder):
    failed = []

    def row(name, what, seconds, more):
        print(f"{what:52} {seconds:5.1f} s of {MOST[name]:3}  {more}", flush=True)
        if seconds > MOST[name]:
            failed.append(what)

    large = folder / "large.toml"
    large.write_text('preset = ["gpt-1008b", "gpt-1008b-3072"]\ntrain.iters = 10\ndata.use = "mock"\n')
    seconds, _ = timed("plan", large, "--on", "a100", "--json")
    taken = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
    row("plan", "plan of GPT 1008B on 3,072 ranks", seconds, f"{taken} MiB of 1024")
    if taken > 1024:
        failed.append("memory")

    seconds, text = timed("plan", "recipes/llama70b.lua", "--search", "--gpus", 64, "--on", "h100", "--json")
    found = json.loads(text)
    row("search", "search for Llama 70B on 64 H100", seconds, f"{found['tried']:,} layouts, {found['fit']:,} fit")
    if found["tried"] < FEWEST_LAYOUTS:
        failed.append("layouts")

    seconds, text = timed("sweep", "recipes/sweeps/model_sizes.lua", "--plan")
    row("sweep", "sweep of the ten models of 2104.04473, planned", seconds, "")
    print(text)
    sys.exit(f"missed: {', '.join(failed)}" if failed else 0)


with tempfile.TemporaryDirectory() as temporary:
    main(pathlib.Path(temporary))
