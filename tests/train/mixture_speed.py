#!/usr/bin/env python3
"""A step of 8 experts, of which a token passes 2, at 16,384 tokens, against a step of the dense model whose feed-forward
costs a token the same products; measured in turn, the ratio of medians.

usage: mixture_speed.py [--precision bf16] [--rounds N] [--steps N] [--tiny]

--tiny takes models of no time, whose ratio says nothing: only that everything runs.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

MOST = 1.25
SIZES = dict(layers=4, hidden=768, expert=1024, seq=1024)  # expert: hidden units of one
TINY = dict(layers=1, hidden=96, expert=32, seq=64)
MODELS = ("dense", "mixture")


def step(model, precision, steps, sizes):
    expert = sizes["expert"]
    fields = {"dense": f'use = "llama"\nffn_hidden = {2 * expert}',
              "mixture": f'use = "moe"\nexperts = 8\nexperts_per_token = 2\nexpert_hidden = {expert}'}[model]
    with tempfile.TemporaryDirectory() as folder:
        recipe = pathlib.Path(folder, "recipe.toml")
        recipe.write_text(f"""
name = "step"
precision = "{precision}"
[model]
{fields}
layers = {sizes["layers"]}
hidden = {sizes["hidden"]}
heads = 12
vocab = 8192
seq_length = {sizes["seq"]}
[data]
use = "mock"
[tokenizer]
use = "null"
vocab = 8192
[optimizer]
use = "adamw"
[batch]
global = 16
micro = 16
[train]
iters = 1000
""")
        done = subprocess.run([os.environ["MEGAHOST"], "bench", "step", recipe, "--steps", str(steps), "--json"],
                              stdout=subprocess.PIPE, check=True)
        return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    seconds = {name: [] for name in MODELS}
    for _ in range(arguments.rounds):
        for name, taken in seconds.items():
            found = step(name, arguments.precision, arguments.steps, TINY if arguments.tiny else SIZES)
            taken.append(found["step_s"])
            print(f"{name:8} {found['step_s']:7.3f} s a step, {found['product_flops_per_token'] / 1e6:.1f} MFLOP of "
                  f"products a token", flush=True)
    ratio = statistics.median(seconds["mixture"]) / statistics.median(seconds["dense"])
    print(f"the mixture's step takes {ratio:.2f} times the dense one's, at most {MOST} is wanted")
    sys.exit(0 if arguments.tiny or ratio <= MOST else 1)


if __name__ == "__main__":
    main()
