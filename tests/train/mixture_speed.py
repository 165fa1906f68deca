#!/usr/bin/env python3
"""A step of 8 experts, of which a token passes 2, at 16,384 tokens, against a step of the dense model whose feed-forward
costs a token the same products; measured in turn, the ratio of medians.

usage: mixture_speed.py [--precision bf16] [--rounds N] [--steps N] [--tiny]

--tiny takes models of no time, whose ratio says nothing: only that everything runs.
"""

import statistics
import sys
import tempfile

import bench_step

MOST = 1.25
SIZES = dict(layers=4, hidden=768, expert=1024, seq_length=1024)  # expert: hidden units of one
TINY = dict(layers=1, hidden=96, expert=32, seq_length=64)
MODELS = ("dense", "mixture")


def step(model, precision, steps, sizes):
    sizes = dict(sizes, heads=12, vocab=8192)
    expert = sizes.pop("expert")
    fields = {"dense": dict(use="llama", ffn_hidden=2 * expert),
              "mixture": dict(use="moe", experts=8, experts_per_token=2, expert_hidden=expert)}[model]
    with tempfile.TemporaryDirectory() as folder:
        recipe = bench_step.write_recipe(folder, precision, fields | sizes, batch=16)
        return bench_step.bench_step(recipe, steps)


def main():
    arguments = bench_step.options(steps=3)
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
