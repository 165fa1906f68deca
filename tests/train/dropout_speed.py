#!/usr/bin/env python3
"""The time that dropout of 0.1, of attention's probabilities too, adds to a step of GPT-2 124M: CPU time of steps with and
without, in turn.

usage: dropout_speed.py [--precision bf16] [--rounds N] [--steps N] [--tiny]

CPU time and one thread, because a busy machine disturbs those least. The ratio of medians counts: exit status 1 above the
limit. --tiny takes a model of no time, whose ratio says nothing: only that everything runs.
"""

import resource
import statistics
import sys
import tempfile

import bench_step

LIMIT = 1.10
LARGE = dict(use="gpt", layers=12, hidden=768, heads=12, vocab=50257, seq_length=1024)
TINY = dict(use="gpt", layers=1, hidden=64, heads=4, vocab=512, seq_length=64)


def cpu_seconds(recipe, dropout, steps):
    """The CPU time of a whole `bench step`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    bench_step.bench_step(recipe, steps, "--set", f"model.dropout={dropout}", "--set", f"model.attention_dropout={dropout}",
                          OMP_NUM_THREADS="1")
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def main():
    arguments = bench_step.options(steps=4)
    seconds = {0: [], 0.1: []}
    with tempfile.TemporaryDirectory() as folder:
        recipe = bench_step.write_recipe(folder, arguments.precision, TINY if arguments.tiny else LARGE, batch=1)
        for _ in range(arguments.rounds):
            for dropout, found in seconds.items():
                # The work that a process does once is in both.
                start = cpu_seconds(recipe, dropout, 1)
                found.append((cpu_seconds(recipe, dropout, 1 + arguments.steps) - start) / arguments.steps)
    without, with_dropout = (statistics.median(found) for found in seconds.values())
    ratio = with_dropout / without
    print(f"a step without dropout {without:.3f} s of CPU time, with 0.1 {with_dropout:.3f} s: {ratio:.2f} times (limit {LIMIT})")
    sys.exit(0 if arguments.tiny or ratio <= LIMIT else 1)


if __name__ == "__main__":
    main()
