#!/usr/bin/env python3
"""The time of a token against what products and attention alone would take, from 512 to 8,192 tokens and from 12 to 48
layers: the rates are those that `megahost bench gemm` and `bench attention` measure in the same run.

usage: scaling.py [--precision bf16] [--steps N]
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

TOLERANCE = 0.15
CASES = [(12, 512), (12, 1024), (12, 2048), (12, 4096), (12, 8192), (24, 1024), (48, 1024)]


def bench(*words):
    done = subprocess.run([os.environ["MEGAHOST"], "bench", *map(str, words), "--json"], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def step(precision, layers, seq, steps):
    with tempfile.TemporaryDirectory() as folder:
        recipe = pathlib.Path(folder, "recipe.toml")
        recipe.write_text(f"""
name = "scaling"
precision = "{precision}"
[model]
use = "gpt"
layers = {layers}
hidden = 768
heads = 12
vocab = 50257
seq_length = {seq}
[data]
use = "mock"
[tokenizer]
use = "null"
vocab = 50257
[optimizer]
use = "adamw"
[batch]
global = {max(4, 16384 // seq)}
micro = 1
""")
        return bench("step", recipe, "--steps", steps)


def product_rate(precision):
    """Of the three products of the layers' shapes, each as often as the others."""
    rows = [row for row in bench("gemm")["rows"] if row["type"] == precision]
    flops = [2.0 * row["m"] * row["n"] * row["k"] for row in rows]
    return sum(flops) / sum(flop / row["gflops_per_s"] for flop, row in zip(flops, rows))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    products = product_rate(arguments.precision)
    attention = {row["tokens"]: row["gflops_per_s"] for row in bench("attention")["rows"]
                 if row["type"] == arguments.precision and row["dim"] == 64}
    print(f"products {products:.0f} GFLOP/s")
    print("layers  tokens  us/token  predicted  ratio  attention GFLOP/s", flush=True)
    worst = 0
    for layers, seq in CASES:
        found = step(arguments.precision, layers, seq, arguments.steps)
        measured = 1e6 / found["tokens_per_s"]
        predicted = 1e-3 * (found["product_flops_per_token"] / products +
                            found["attention_flops_per_token"] / attention[seq])
        worst = max(worst, abs(measured / predicted - 1))
        print(f"{layers:6} {seq:7} {measured:9.1f} {predicted:10.1f} {measured / predicted:6.2f} {attention[seq]:18.0f}",
              flush=True)
    sys.exit(0 if worst <= TOLERANCE else 1)


if __name__ == "__main__":
    main()
