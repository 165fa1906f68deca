#!/usr/bin/env python3
"""`megahost bench` as programs read it: keys, sound numbers, and steps that ask the system for no more memory.

The recipe is small: what grows from step 3 on is what every run would lose. The system gives memory in pages of up to 2 MB,
so that one or two may come late; a leak of 83 kB a step is found all the same.
"""

import json
import os
import subprocess
import sys
import tempfile

RECIPE = """
name = "small"
precision = "bf16"
[model]
use = "llama"
layers = 2
hidden = 128
heads = 4
vocab = 5003
seq_length = 128
[data]
use = "mock"
[tokenizer]
use = "null"
vocab = 5003
[optimizer]
use = "adamw"
lr = 1e-4
[batch]
global = 4
micro = 2
[train]
iters = 1000
"""


def bench(*words):
    done = subprocess.run([os.environ["MEGAHOST"], "bench", *words, "--json"], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def step_keys(folder):
    recipe = os.path.join(folder, "small.toml")
    with open(recipe, "w") as file:
        file.write(RECIPE)
    found = bench("step", recipe, "--steps", "60")
    assert found["system_requests"] == 0, found
    assert found["rss_growth_gb"] < 5e-3, found
    assert 0 < found["share_of_peak"] < 1, found
    assert 0 < found["state_gb"] < found["rss_gb"], found
    assert abs(found["tokens_per_s"] * found["step_s"] - 4 * 128) < 1e-6 * 512, found
    elements = found["state_gb"] * 1e9 / 18  # bf16 weights; float32 gradients, masters and two averages
    expected = 6 * elements  # FLOPs; the embedding is looked up, and padding is counted in the state
    assert 0.5 * expected < found["product_flops_per_token"] < expected, found
    per_s = found["model_flops_per_token"] * found["tokens_per_s"] / 1e9
    assert abs(found["model_gflops_per_s"] / per_s - 1) < 1e-6, found
    data = bench("data", recipe)
    assert all(row["tokens_per_s"] > 0 for row in data["rows"]), data


def refusals(folder):
    done = subprocess.run([os.environ["MEGAHOST"], "bench", "step", "recipes/llama70b.lua"], stderr=subprocess.PIPE,
                          cwd=os.environ["MEGAHOST_SOURCE"], text=True)
    assert done.returncode == 2 and "measures one rank" in done.stderr, done


def calibration(folder):
    """The measured rates are used by plans of this machine's CPU, and by no others."""
    environment = os.environ | {"XDG_DATA_HOME": folder}

    def megahost(*words, **more):
        return subprocess.run([os.environ["MEGAHOST"], *words], stdout=subprocess.PIPE, check=True, text=True,
                              cwd=os.environ["MEGAHOST_SOURCE"], env=environment | more).stdout

    def assumed(**more):
        plan = json.loads(megahost("plan", "tests/cli/tiny.toml", "--on", "this", "--json", **more))
        return any("bench --calibrate" in note for note in plan["notes"])

    assert assumed()
    said = megahost("bench", "--calibrate")
    file = os.path.join(folder, "megahost", "machine.toml")
    assert file + " holds them" in said, said
    assert '"megahost::attention' in open(file).read()
    # The peak that the plan has measured is next to it, and nothing half-written is.
    assert sorted(os.listdir(os.path.dirname(file))) == ["machine.toml", "peaks.toml"]
    assert not assumed()
    assert os.cpu_count() == 1 or assumed(OMP_NUM_THREADS="1"), "rates of other threads were taken"


def rates(what):
    found = bench(what)
    rows = found["rows"]
    if not found["kernels"].startswith(("avx512", "amx")):  # LibTorch has no GEMM of bf16 to measure there
        for row in rows:
            if row.get("type") == "bf16":
                assert row.pop("libtorch_gflops_per_s") is None, row
    numbers = [value for row in rows for value in row.values() if not isinstance(value, str)]
    assert len(numbers) > len(rows) and min(numbers) > 0, (what, rows)


def collectives(folder):
    recipe = os.path.join(folder, "small.toml")
    rows = bench("comm", recipe, "--set", "parallel.tensor=2", "--set", "parallel.pipeline=2", "--threads")["rows"]
    assert {(row["axis"], row["operation"]) for row in rows} == {
        ("pp", "send to next"), ("tp", "all-reduce"), ("tp", "all-gather"), ("tp", "reduce-scatter"),
        ("tp", "all-to-all")}, rows
    assert all(row["gb_per_s"] > 0 and 0 < row["own_microseconds"] < row["microseconds"] for row in rows), rows
    rows = bench("comm", recipe, "--nproc", "2")["rows"]
    assert {row["axis"] for row in rows} == {"dp"} and len(rows) == 16, rows


with tempfile.TemporaryDirectory() as temporary:
    if "--calibration" in sys.argv:
        calibration(temporary)
        rates("gemm")
    else:
        step_keys(temporary)
        refusals(temporary)
        rates("memory")
        rows = bench("masks")["rows"]
        assert len(rows) == 26 and all(max(row["forward_error"], row["backward_error"]) <= row["allowed"] for row in rows), rows
        collectives(temporary)
