#!/usr/bin/env python3
"""Two ranks of one thread against one rank of two, with and without overlap: a model of 30 million parameters, fp32,
eight microbatches of 2,048 tokens. The ratios of one run count; the machine must be quiet.

usage: ranks_speed.py [--steps N] [--tiny]

--tiny takes a model of no time, whose ratios say nothing: only that everything runs.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

LEAST = {"data=2": 0.95, "data=2,zero=1": 0.90, "pipeline=2": 0.85, "tensor=2": 0.80}
NOISE = 0.02  # of two runs of the same

program = os.environ["MEGAHOST"]
steps = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 3
tiny = "--tiny" in sys.argv
layers, hidden, length, samples = (2, 64, 64, 1) if tiny else (8, 512, 512, 4)  # samples of a microbatch
folder = pathlib.Path(tempfile.mkdtemp(prefix="megahost-ranks-"))
(folder / "thirty.toml").write_text(f"""
precision = "fp32"
model = {{ use = "gpt", layers = {layers}, hidden = {hidden}, heads = 8, vocab = 8192, seq_length = {length} }}
data = {{ use = "mock" }}
tokenizer = {{ use = "null", vocab = 8192 }}
optimizer = {{ use = "adamw" }}
batch = {{ global = {8 * samples}, micro = {samples} }}
train = {{ iters = {steps + 1} }}
log = {{ interval = 1, format = "json" }}
checkpoint = {{ save_at_end = false }}
""")


def rate(name, layout):
    """Tokens per second; the first step, which learns what the others use, does not count. And peak memory of rank 0."""
    command = [program, "run", "thirty.toml", "--run-dir", name]
    command += ["--nproc", "2"] if layout else []
    for item in layout.split(","):
        command += ["--set", "parallel." + item] if item else []
    env = {**os.environ, "OMP_NUM_THREADS": "1" if layout else "2"}
    subprocess.run(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, check=True)
    records = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    found = [record for record in records if "losses" in record][1:]
    return 8 * samples * length / statistics.median(record["seconds"] for record in found), found[-1]["memory"] / 1e9


one, memory = rate("one", "")
print(f"one rank of two threads: {one:.0f} tokens/s, {memory:.2f} GB", flush=True)
good = True
for layout, least in LEAST.items():
    beside, memory = rate(layout, layout)
    after, _ = rate(layout + " after", layout + ",overlap=false")
    fine = beside / one >= least and beside >= (1 - NOISE) * after
    good = good and fine
    print(f"{layout}: {beside:.0f} tokens/s, {beside / one:.2f} of one rank (at least {least}); without overlap "
          f"{after / one:.2f}; {memory:.2f} GB a rank{'' if fine else '  TOO SLOW'}", flush=True)
sys.exit(0 if good or tiny else 1)
