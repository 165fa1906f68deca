#!/usr/bin/env python3
"""The quickstart under eight layouts of two ranks: its curves stay together, and a layout that runs again has the same bits.

usage: curves.py STEPS [--svg FILE]
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

LAYOUTS = ["tensor=2", "tensor=2,sequence=true", "context=2", "data=2", "data=2,zero=1", "data=2,zero=3",
           "pipeline=2", "pipeline=2,schedule=zb-h1"]
BOUND = 1e-3

program = os.environ["MEGAHOST"]
recipe = os.environ["MEGAHOST_SOURCE"] + "/recipes/quickstart.lua"
steps = sys.argv[1]
sizes = ["heads=8"]  # the quickstart's seven cannot be shared
folder = pathlib.Path(tempfile.mkdtemp(prefix="megahost-curves-"))


def train(name, layout):
    words = ["precision=fp32", "batch.micro=1", "log.interval=1", "train.eval_interval=0", "train.iters=" + steps,
             "checkpoint.save_at_end=false"]
    words += ["model." + size for size in sizes] + ["parallel." + item for item in layout.split(",") if item]
    command = [program, "run", recipe, "--run-dir", name, "--log-format", "json"]
    command += ["--nproc", "2"] if layout else []
    for word in words:
        command += ["--set", word]
    env = {**os.environ, "OMP_NUM_THREADS": "1" if layout else "2"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=env)
    assert done.returncode == 0, f"{name}: status {done.returncode}\n{done.stdout}{done.stderr}"
    records = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    found = [(record["losses"]["lm loss"], record["gradient_norm"]) for record in records if "losses" in record]
    assert len(found) == int(steps), f"{name}: {len(found)} steps"
    return found


one = train("one rank", "")
assert one[-1][0] < one[0][0], "nothing was learned"
names, curves = ["one rank"], [one]
for layout in LAYOUTS:
    found = train(layout, layout)
    names.append(layout)
    curves.append(found)
    worst = max(abs(a - b) / a for (a, _), (b, _) in zip(one, found, strict=True))
    same = train(layout + " again", layout) == found
    print(f"{layout}: losses within {worst:.1e} of one rank's; run again: {'the same bits' if same else 'OTHER BITS'}",
          flush=True)
    assert same, layout
apart = max(max(losses) / min(losses) - 1 for losses in ([loss for loss, _ in step] for step in zip(*curves, strict=True)))
print(f"all of them: within {apart:.1e} of one another")
assert apart < BOUND, names
if "--svg" in sys.argv:
    picture = pathlib.Path(sys.argv[sys.argv.index("--svg") + 1]).absolute()
    subprocess.run([program, "plot", *names, "--metric", "loss", "--svg", picture], cwd=folder, check=True)
