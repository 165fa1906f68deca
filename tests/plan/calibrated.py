#!/usr/bin/env python3
"""Planned steps next to measured ones on this machine's CPU, after `megahost bench --calibrate`.

usage: calibrated.py [ROW...] [--rounds N] [--steps N]

Each round plans and measures every row; medians over all rounds count. Exit status 1 if a row differs by more than 15%.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

ALLOWED = 0.15
GPT2 = ["recipes/gpt2_124m.lua", "--set", "batch.global=2", "--set", "batch.micro=1"]
ROWS = {
    f"{name}-{precision}-{length}": [*words, "--set", f"model.seq_length={length}", "--set", f"precision={precision}"]
    for name, words in (("quickstart", ["recipes/quickstart.lua"]), ("gpt2_124m", GPT2))
    for precision in ("bf16", "fp32") for length in (256, 1024)
}


def megahost(folder, *words):
    environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    done = subprocess.run([os.environ["MEGAHOST"], *words], stdout=subprocess.PIPE, text=True, check=True,
                          cwd=os.environ["MEGAHOST_SOURCE"], env=environment | {"XDG_DATA_HOME": folder})
    return done.stdout


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", nargs="*", default=list(ROWS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    planned, measured = {}, {}
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as folder:
            print(megahost(folder, "bench", "--calibrate"), flush=True)
            for row in arguments.rows:
                plan = json.loads(megahost(folder, "plan", *ROWS[row], "--on", "this", "--json"))
                assert not any("--calibrate" in note for note in plan["notes"]), plan["notes"]
                step = json.loads(megahost(folder, "bench", "step", *ROWS[row], "--steps", str(arguments.steps), "--json"))
                planned.setdefault(row, []).append(plan["step_seconds"])
                measured.setdefault(row, []).extend(step["step_seconds"])
                print(f"{row}: planned {plan['step_seconds']:.3f} s, measured "
                      f"{' '.join(f'{seconds:.3f}' for seconds in step['step_seconds'])}", flush=True)
    worst = 0
    for row in arguments.rows:
        plan, step = statistics.median(planned[row]), statistics.median(measured[row])
        worst = max(worst, abs(plan / step - 1))
        print(f"{row:24} planned {plan:7.3f} s, measured {step:7.3f} s: {100 * (plan / step - 1):+.1f}%")
    sys.exit(0 if worst <= ALLOWED else 1)


main()
