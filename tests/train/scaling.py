#!/usr/bin/env python3
"""The time of a token against what products and attention alone would take, from 512 to 8,192 tokens and from 12 to 48
layers: the rates are those that `megahost bench gemm` and `bench attention` measure in the same run.

usage: scaling.py [--precision bf16] [--steps N] [--tiny]

Rates are measured before the steps and after them. The ratio of medians counts; next to it stands that of the shortest step
to the shortest calls, what the machine does when nothing else disturbs it. --tiny takes models of no time, whose ratios say
nothing: only that everything runs.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

TOLERANCE = 0.15
PASS = 4096  # tokens of a microbatch, the same for all lengths up to this
CASES = [(12, 512), (12, 1024), (12, 2048), (12, 4096), (12, 8192), (24, 1024), (48, 1024)]
SIZES = dict(hidden=768, heads=12, vocab=50257)
TINY = dict(hidden=64, heads=4, vocab=512)


def bench(*words):
    done = subprocess.run([os.environ["MEGAHOST"], "bench", *map(str, words), "--json"], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def step(precision, layers, seq, steps, sizes):
    with tempfile.TemporaryDirectory() as folder:
        recipe = pathlib.Path(folder, "recipe.toml")
        recipe.write_text(f"""
name = "scaling"
precision = "{precision}"
[model]
use = "gpt"
layers = {layers}
hidden = {sizes["hidden"]}
heads = {sizes["heads"]}
vocab = {sizes["vocab"]}
seq_length = {seq}
[data]
use = "mock"
[tokenizer]
use = "null"
vocab = {sizes["vocab"]}
[optimizer]
use = "adamw"
[batch]
global = {max(1, PASS // seq)}
micro = {max(1, PASS // seq)}
[train]
iters = 1000
""")
        return bench("step", recipe, "--steps", steps)


STATISTICS = {"median": (statistics.median, "median_gflops_per_s"), "shortest": (min, "gflops_per_s")}


def rates(precision):
    """By statistic, seconds of a FLOP: of the three products of the layers' shapes, each as often as the others; and of
    attention, by tokens."""
    products = [row for row in bench("gemm")["rows"] if row["type"] == precision]
    attention = [row for row in bench("attention")["rows"] if row["type"] == precision and row["dim"] == 64]
    flops = [2.0 * row["m"] * row["n"] * row["k"] for row in products]
    return {name: (sum(1e-9 * flop / row[key] for flop, row in zip(flops, products)) / sum(flops),
                   {row["tokens"]: 1e-9 / row[key] for row in attention})
            for name, (_, key) in STATISTICS.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    cases, sizes = ([(1, 64), (2, 64)], TINY) if arguments.tiny else (CASES, SIZES)
    measure = (lambda: {name: (1, {64: 1}) for name in STATISTICS}) if arguments.tiny else lambda: rates(arguments.precision)
    before = measure()
    steps = []
    for layers, seq in cases:
        steps.append(step(arguments.precision, layers, seq, arguments.steps, sizes))
        print(f"{layers} layers, {seq} tokens: {1e6 * min(steps[-1]['step_seconds']) / max(PASS, seq):.0f} us a token",
              file=sys.stderr, flush=True)
    after = measure()
    worst = 0
    for name, (statistic, _) in STATISTICS.items():
        products = [measured[name][0] for measured in (before, after)]
        print(f"{name} times: products {1e-9 / products[0]:.0f} GFLOP/s before, {1e-9 / products[1]:.0f} after")
        print("layers  tokens  us/token  predicted  ratio  attention GFLOP/s")
        for (layers, seq), found in zip(cases, steps):
            attention = statistics.mean(measured[name][1][seq] for measured in (before, after))
            taken = 1e6 * statistic(found["step_seconds"]) / max(PASS, seq)
            predicted = 1e6 * (found["product_flops_per_token"] * statistics.mean(products) +
                               found["attention_flops_per_token"] * attention)
            if name == "median":
                worst = max(worst, abs(taken / predicted - 1))
            print(f"{layers:6} {seq:7} {taken:9.1f} {predicted:10.1f} {taken / predicted:6.2f} {1e-9 / attention:18.0f}")
    sys.exit(0 if arguments.tiny or worst <= TOLERANCE else 1)


if __name__ == "__main__":
    main()
