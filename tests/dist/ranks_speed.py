#!/usr/bin/env python3
"""Two ranks of one thread against one rank of two, with and without overlap: a model of 30 million parameters, fp32,
eight microbatches of 2,048 tokens. The runs of a layout go in turn with those of one rank, and medians of the rounds'
ratios count; the machine must be quiet.

usage: ranks_speed.py [--steps N] [--rounds N] [--tiny] [LAYOUT ...]

--tiny takes a model of no time, whose ratios say nothing: only that everything runs.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

LEAST = {"data=2": 0.95, "data=2,zero=1": 0.90, "pipeline=2": 0.85, "tensor=2": 0.80}
NOISE = 0.02  # share by which two runs of the same differ

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--tiny", action="store_true")
parser.add_argument("layouts", nargs="*", metavar="LAYOUT", help="of " + " ".join(LEAST))
arguments = parser.parse_args()
program, steps, tiny = os.environ["MEGAHOST"], arguments.steps, arguments.tiny
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


good = True
for layout in arguments.layouts or LEAST:
    ratios = []  # each round's: to one rank, without overlap to one rank, with overlap to without
    for round in range(arguments.rounds):
        one, alone = rate(f"one {layout} {round}", "")
        together, memory = rate(f"{layout} {round}", layout)
        after, _ = rate(f"{layout} after {round}", layout + ",overlap=false")
        ratios.append((together / one, after / one, together / after))
    to_one, after_to_one, overlap = (statistics.median(column) for column in zip(*ratios))
    fine = to_one >= LEAST[layout] and overlap >= 1 - NOISE
    good = good and fine
    print(f"{layout}: {to_one:.2f} of one rank (at least {LEAST[layout]}), without overlap {after_to_one:.2f}; with overlap to "
          f"without {overlap:.3f} ({', '.join(f'{row[2]:.3f}' for row in ratios)}); {memory:.2f} GB a rank, one rank alone "
          f"{alone:.2f}{'' if fine else '  TOO SLOW'}", flush=True)
sys.exit(0 if good or tiny else 1)
