#!/usr/bin/env python3
"""Model presets under the layouts that were made for them: the plan fits the memory that the layout names, and scaled to
8 local ranks, two steps have one rank's losses.

usage: presets.py all|sample
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

SAMPLE = [("llama3-405b", "llama3-405b-16384-128k"), ("mixtral-8x7b", "mixtral-8x7b-64"), ("gpt-6.7b", "gpt-6.7b-trn1-512")]
MACHINES = {"80 GB": "h100", "40 GB": "p4d.24xlarge", "16 GB": "trn1.32xlarge"}
MEGAHOST = os.environ["MEGAHOST"]


def pairs():
    """(model, layout) to the machine whose memory the layout names."""
    presets = json.loads(subprocess.run([MEGAHOST, "presets", "--json"], capture_output=True, check=True).stdout)
    return {(model, preset["name"]): MACHINES[preset["memory"][:5]]
            for preset in presets if preset["kind"] == "layout" for model in preset["models"]}


def plan(recipe, machine):
    """Whether it fits, and the fullest stage's share of the memory."""
    result = subprocess.run([MEGAHOST, "plan", recipe, "--on", machine, "--json"], capture_output=True, text=True)
    if result.returncode not in (0, 1):
        raise RuntimeError(f"megahost plan {recipe} --on {machine}\n{result.stderr[-2000:]}")
    found = json.loads(result.stdout)
    return found["fits"], max(stage["total"] for stage in found["stages"]) / found["capacity_bytes"]


def losses(recipe, folder, options):
    """One sample a microbatch: balance losses of experts are those of a microbatch."""
    command = [MEGAHOST, "run", recipe, "--scale", "--run-dir", folder, "--set", "train.iters=2", "--set",
               "precision=fp32", "--set", "checkpoint.save_at_end=false", "--set", "train.eval_interval=0", "--set",
               "batch.micro=1", *options]
    result = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if result.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{result.stdout[-2000:]}")
    return [json.loads(line)["losses"]["lm loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def main():
    known = pairs()
    chosen = known if sys.argv[1] == "all" else SAMPLE
    assert set(chosen) <= set(known), set(chosen) - set(known)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for model, layout in chosen:
            recipe = folder / f"{model}.{layout}.toml"
            recipe.write_text(f'preset = ["{model}", "{layout}"]\ntrain.iters = 2\ndata.use = "mock"\n')
            one = losses(recipe, folder / f"{layout}.{model}.1", [])
            many = losses(recipe, folder / f"{layout}.{model}.8", ["--nproc", "8"])
            fits, share = plan(recipe, known[model, layout])
            same = len(one) == len(many) == 2 and all(abs(a - b) < 2e-5 * abs(a) for a, b in zip(one, many))
            print(f"{model:14} {layout:24} {share:4.0%} of {known[model, layout]:13} {'fits' if fits else 'DOES NOT FIT'}  "
                  f"{one} {many} {'same' if same else 'DIFFERS'}", flush=True)
            failed += not (fits and same)
    sys.exit(failed and f"{failed} of {len(chosen)} differ or do not fit")


main()
