#!/usr/bin/env python3
"""A decoder of recurrent layers, built from the SDK's headers only: it has the numbers of one rank under every layout,
writes the same text over a cache and without one, names a part of its own for recompute, and is found out where its
state or its convolution's tail is wrong."""

import json
import os
import pathlib

from trial import Trial

fixture = str(pathlib.Path(os.environ["MEGAHOST_FIXTURES"]) / "recurrent.so")
trial = Trial("recurrent", f"""
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
(trial.folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 400)

# Every strategy; packed documents, too, which samples of --model have.
for layouts, recompute in (
    ("tensor=2; tensor=2,sequence=true; context=2; context=2,context_method=all_gather; "
     "context=2,context_method=all_to_all; tensor=2,sequence=true,context=2; pipeline=2; data=2,zero=1; data=2,zero=3",
     "none"),
    ("tensor=2,sequence=true; context=2; pipeline=2", "full"),
):
    trial.same(layouts, f"recompute.use={recompute}")
text = trial.run("check", "--plugin", fixture, "--model", "recurrent", "--layouts", "tensor=2,sequence=true; context=2",
           "--precision", "float64")
assert "every layout matches the single-rank result" in text

# A part of its own.
parts = ("recompute.use=selective", 'recompute.parts=["recurrence", "core_attention"]')
trial.same("context=2", *parts)
text = trial.run("run", "recurrent.toml", "--run-dir", "none", sets=(parts[0], 'recompute.parts=["recurence"]'), code=2)
assert "recompute.parts" in text and "recurrence" in text and "core_attention" in text, text

# It trains, also where ranks hold different tokens, and the part changes no bit.
trial.run("run", "recurrent.toml", "--run-dir", "one", sets=("precision=fp32",))
trial.run("run", "recurrent.toml", "--run-dir", "parts", sets=("precision=fp32", *parts))
assert trial.losses("one") == trial.losses("parts") and len(trial.losses("one")) == 20
trial.run("run", "recurrent.toml", "--run-dir", "checked", "--checking", "--nproc", "2",
    sets=("precision=fp32", "parallel.tensor=2", "parallel.sequence=true"))
for one, other in zip(trial.losses("one"), trial.losses("checked")):
    assert abs(one["lm loss"] / other["lm loss"] - 1) < 1e-4, (one, other)

# The same text over a cache and without one, longer than the model sees at once.
words = ("generate", "one", "--plugin", fixture, "--prompt", "the quick", "--tokens", "60", "--json")
cached = json.loads(trial.run(*words).splitlines()[-1])
whole = json.loads(trial.run(*words, "--no-cache").splitlines()[-1])
assert cached["cached"] and not whole["cached"] and cached["ids"] == whole["ids"], (cached, whole)

# A model that is wrong over a cache is refused where text would be, and its fault is found by name
# in the plugin.
text = trial.run(*words, code=5, fault="tail")
assert "say that they read a cache, but over one its scores are others" in text, text
trial.run("plugins", "check", fixture)
for fault, test, why in (
    ("state", "cached-generation", "generation reads tokens 0 to "),
    ("tail", "cached-generation", "generation reads tokens "),
    ("part", "recompute-bit-equal", "recomputed, "),
    ("part alone", "recompute-bit-equal", "with part recurrence recomputed, other bits come out: the gradient of "),
    ("unused", "recompute-bit-equal", 'it declares the part "unused" for recompute, which no block of it runs'),
):
    tests = json.loads(trial.run("plugins", "check", fixture, "--include", test, "--json", fault=fault, code=1))["tests"]
    failed = {one["name"]: one["why"] for one in tests if one["result"] == "failed"}
    assert list(failed) == [test] and why in failed[test], (fault, failed)
