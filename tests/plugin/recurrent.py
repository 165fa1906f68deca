#!/usr/bin/env python3
"""A decoder of recurrent layers, built from the SDK's headers only: it has the numbers of one rank under every layout,
writes the same text over a cache and without one, names a part of its own for recompute, and is found out where its
state or its convolution's tail is wrong."""

import json
import os
import pathlib
import subprocess
import tempfile

program = os.environ["MEGAHOST"]
fixture = str(pathlib.Path(os.environ["MEGAHOST_FIXTURES"]) / "recurrent.so")
folder = pathlib.Path(tempfile.mkdtemp(prefix="megahost-recurrent-"))
(folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 400)
(folder / "recurrent.toml").write_text(f"""
plugins = ["{fixture}"]
[model]
use = "recurrent"
layers = 2
hidden = 32
heads = 4
seq_length = 32
[data]
use = "text"
paths = ["text.txt"]
split = [100, 0, 0]
[tokenizer]
use = "byte"
[batch]
global = 8
[train]
iters = 20
eval_interval = 0
[optimizer]
lr = 0.01
""")


def run(*words, sets=(), code=0, fault=""):
    command = [program, *words]
    for one in sets:
        command += ["--set", one]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=os.environ | {"MH_FAULT": fault})
    print(fault, " ".join(words), sets, "\n" + result.stdout + result.stderr, flush=True)
    assert result.returncode == code, result.returncode
    return result.stdout + result.stderr


# Every strategy; packed documents, too, which samples of --model have.
for layouts, recompute in (
    ("tensor=2; tensor=2,sequence=true; context=2; context=2,context_method=all_gather; "
     "context=2,context_method=all_to_all; tensor=2,sequence=true,context=2; pipeline=2; data=2,zero=1; data=2,zero=3",
     "none"),
    ("tensor=2,sequence=true; context=2; pipeline=2", "full"),
):
    text = run("check", "recurrent.toml", "--layouts", layouts, "--precision", "float64",
               sets=(f"recompute.use={recompute}",))
    assert "every layout matches the single-rank result" in text
text = run("check", "--plugin", fixture, "--model", "recurrent", "--layouts", "tensor=2,sequence=true; context=2",
           "--precision", "float64")
assert "every layout matches the single-rank result" in text

# A part of its own.
parts = ("recompute.use=selective", 'recompute.parts=["recurrence", "core_attention"]')
text = run("check", "recurrent.toml", "--layouts", "context=2", "--precision", "float64", sets=parts)
assert "every layout matches the single-rank result" in text
text = run("run", "recurrent.toml", "--run-dir", "none", sets=(parts[0], 'recompute.parts=["recurence"]'), code=2)
assert "recompute.parts" in text and "recurrence" in text and "core_attention" in text, text


def losses(name):
    lines = (folder / name / "metrics.jsonl").read_text().splitlines()
    return [one["losses"]["lm loss"] for one in map(json.loads, lines) if "losses" in one]


# It trains, also where ranks hold different tokens, and the part changes no bit.
run("run", "recurrent.toml", "--run-dir", "one", sets=("precision=fp32",))
run("run", "recurrent.toml", "--run-dir", "parts", sets=("precision=fp32", *parts))
assert losses("one") == losses("parts") and len(losses("one")) == 20
run("run", "recurrent.toml", "--run-dir", "checked", "--checking", "--nproc", "2",
    sets=("precision=fp32", "parallel.tensor=2", "parallel.sequence=true"))
for one, other in zip(losses("one"), losses("checked")):
    assert abs(one / other - 1) < 1e-4, (one, other)

# The same text over a cache and without one, longer than the model sees at once.
words = ("generate", "one", "--plugin", fixture, "--prompt", "the quick", "--tokens", "60", "--json")
cached = json.loads(run(*words).splitlines()[-1])
whole = json.loads(run(*words, "--no-cache").splitlines()[-1])
assert cached["cached"] and not whole["cached"] and cached["ids"] == whole["ids"], (cached, whole)

# What is wrong over a cache is refused where text would be, and found by name in the plugin.
text = run(*words, code=5, fault="tail")
assert "say that they read a cache, but over one its scores are others" in text, text
run("plugins", "check", fixture)
for fault, test, why in (
    ("state", "cached-generation", "generation reads tokens 0 to "),
    ("tail", "cached-generation", "generation reads tokens "),
    ("part", "recompute-bit-equal", "recomputed, "),
    ("unused", "recompute-bit-equal", 'it declares the part "unused" for recompute, which no block of it runs'),
):
    tests = json.loads(run("plugins", "check", fixture, "--json", fault=fault, code=1))["tests"]
    failed = {one["name"]: one["why"] for one in tests if one["result"] == "failed"}
    assert list(failed) == [test] and why in failed[test], (fault, failed)
