#!/usr/bin/env python3
"""The time of a token against what products and attention alone would take, from 512 to 8,192 tokens and from 12 to 48
layers: the rates are those that `megahost bench gemm` and `bench attention` measure in the same run.

usage: scaling.py [--precision bf16] [--steps N] [--tiny]

Rates and steps are the shortest of several: what the machine does when nothing else disturbs it. --tiny takes models of no
time, whose ratios say nothing: only that everything runs.
"""

import argparse
import json
import os
import pathlib
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


def product_rate(precision):
    """Of the three products of the layers' shapes, each as often as the others."""
    rows = [row for row in bench("gemm")["rows"] if row["type"] == precision]
    flops = [2.0 * row["m"] * row["n"] * row["k"] for row in rows]
    return sum(flops) / sum(flop / row["gflops_per_s"] for flop, row in zip(flops, rows))


def rates(precision):
    attention = {row["tokens"]: row["gflops_per_s"] for row in bench("attention")["rows"]
                 if row["type"] == precision and row["dim"] == 64}
    return product_rate(precision), attention


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    cases, sizes = ([(1, 64), (2, 64)], TINY) if arguments.tiny else (CASES, SIZES)
    products, attention = (1, {64: 1}) if arguments.tiny else rates(arguments.precision)
    print(f"products {products:.0f} GFLOP/s")
    print("layers  tokens  us/token  predicted  ratio  attention GFLOP/s", flush=True)
    worst = 0
    for layers, seq in cases:
        found = step(arguments.precision, layers, seq, arguments.steps, sizes)
        measured = 1e6 * min(found["step_seconds"]) / max(PASS, seq)
        predicted = 1e-3 * (found["product_flops_per_token"] / products +
                            found["attention_flops_per_token"] / attention[seq])
        worst = max(worst, abs(measured / predicted - 1))
        print(f"{layers:6} {seq:7} {measured:9.1f} {predicted:10.1f} {measured / predicted:6.2f} {attention[seq]:18.0f}",
              flush=True)
    sys.exit(0 if arguments.tiny or worst <= TOLERANCE else 1)


if __name__ == "__main__":
    main()
