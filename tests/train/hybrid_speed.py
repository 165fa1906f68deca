#!/usr/bin/env python3
"""The time of a token in steps of a hybrid, over sequences of 2,048 to 32,768 tokens: Mamba-2, and attention in a window.

usage: hybrid_speed.py [--precision bf16|fp32] [--rounds N] [--steps N] [--tiny]

Every step has as many tokens. Rounds take the lengths in turn; times are medians over all rounds. Exit status 1 if a token
of the longest sequences takes more than 1.2 times one of the shortest. --tiny compares nothing: it shows that all runs.
"""

import statistics
import sys
import tempfile

import bench_step

MODEL = dict(use="hybrid", pattern="M-M*-M-", layers=7, hidden=256, heads=4, ffn_hidden=768, mamba_heads=8, mamba_state=64,
             window=1024, vocab=8192)
LENGTHS = (2048, 4096, 8192, 16384, 32768)
MOST = 1.2  # times the shortest's

arguments = bench_step.options(steps=2)
lengths = (128, 256) if arguments.tiny else LENGTHS
seconds = {length: [] for length in lengths}
for _ in range(arguments.rounds):
    for length in lengths:
        with tempfile.TemporaryDirectory() as folder:
            recipe = bench_step.write_recipe(folder, arguments.precision, MODEL | dict(seq_length=length), 1)
            found = bench_step.bench_step(recipe, arguments.steps, "--set", f"batch.global={lengths[-1] // length}")
        seconds[length] += found["step_seconds"]
first = statistics.median(seconds[lengths[0]])
worst = 0.0
for length in lengths:
    ratio = statistics.median(seconds[length]) / first
    worst = max(worst, ratio)
    print(f"{length:6} tokens: {1e6 * statistics.median(seconds[length]) / lengths[-1]:.1f} us a token, {ratio:.2f} of {lengths[0]}'s",
          flush=True)
sys.exit(0 if arguments.tiny or worst <= MOST else 1)
