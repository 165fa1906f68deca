#!/usr/bin/env python3
"""A small encoder-decoder, built from the SDK's headers only: two sequences of lengths of their own, cross attention,
relative biases and words that stages share, an encoder's output that passes through later stages. It has the numbers
of one rank under every layout, its plan counts the FLOPs of both stacks, and it trains."""

import json
import os
import pathlib

from trial import Trial

fixture = str(pathlib.Path(os.environ["MEGAHOST_FIXTURES"]) / "encoder_decoder.so")
ENCODER, DECODER = 48, 24  # tokens
LAYERS, HIDDEN, HEADS, VOCAB = 2, 32, 4, 256
trial = Trial("spans", f"""
plugins = ["{fixture}"]
[model]
use = "encoder-decoder"
layers = {LAYERS}
hidden = {HIDDEN}
heads = {HEADS}
encoder_layers = {LAYERS}
encoder_length = {ENCODER}
seq_length = {DECODER}
[data]
use = "spans"
split = [100, 0, 0]
[batch]
global = 8
[train]
iters = 3
eval_interval = 0
[optimizer]
lr = 0.01
""")


def same(layouts, *sets, precision="float64"):
    assert "corpus spans" in trial.same(layouts, *sets, precision=precision)


# Every strategy, alone and with others; all three ways of context parallelism.
same("tensor=2; tensor=2,sequence=true; data=2,zero=1; data=2,zero=3; "
     "context=2; context=2,context_method=all_gather; context=2,context_method=all_to_all; "
     "tensor=2,sequence=true,context=2")
# The memory passes through stages, and collects gradients from all of them.
same("pipeline=2; pipeline=2,schedule=zb-h1; pipeline=2,virtual_stages=2,schedule=interleaved-1f1b; "
     "pipeline=4; pipeline=2,tensor=2,sequence=true; pipeline=2,context=2; pipeline=2,data=2,zero=1")
# Masks of dropout follow tokens of both sequences; what is recomputed is read from the right one.
for recompute in ("full", "selective"):
    same("tensor=2,sequence=true; context=2; pipeline=2", f"recompute.use={recompute}", "model.dropout=0.1")
same("tensor=2,sequence=true; context=2; pipeline=2", precision="bf16")
same("tensor=2,sequence=true,context=2", precision="fp32")

# `plugins check` takes samples of its own, of several documents in both sequences, and checks all else that plugins are asked.
trial.run("plugins", "check", fixture)

# A length that ranks cannot split is refused in a sentence.
for layout, length in ("parallel.context=2", 30), ("parallel.tensor=3", 32):
    text = trial.run("plan", "spans.toml", "--on", "h100", code=2,
               sets=(layout, "parallel.sequence=true", "parallel.tensor=2", "model.seq_length=24", "model.heads=6", "model.hidden=36",
                     f"model.encoder_length={length}", layout))
    assert f"the model's sequence `encoder` of {length} tokens cannot be cut into" in text, text

# The plan counts the model's FLOPs: GEMMs of each stack over its own tokens, attention over its own
# pairs. A step executes these, however it is laid out.
gemm = 2 * HIDDEN * HIDDEN
each = {"encoder": LAYERS * ENCODER * gemm * (4 + 4), "decoder": LAYERS * DECODER * gemm * (4 + 2 + 4),
        "memory": LAYERS * ENCODER * gemm * 2, "head": 2 * DECODER * HIDDEN * VOCAB}
pairs = LAYERS * (ENCODER**2 + DECODER * (DECODER + 1) / 2 + ENCODER * DECODER)
model = 3 * 8 * (sum(each.values()) + 4 * HIDDEN * pairs)
for sets in ((), ("parallel.tensor=2",), ("parallel.pipeline=2",), ("parallel.context=2", "parallel.context_method=all_gather")):
    plan = json.loads(trial.run("plan", "spans.toml", "--on", "h100", "--json", sets=(*sets, "device=cpu")))
    for name in ("model_flops", "executed_flops"):
        assert abs(plan[name] / model - 1) < 1e-9, (sets, name, plan[name], model)

# It trains, and says how many tokens it reads.
text = trial.run("run", "spans.toml", "--run-dir", "one")
assert f"{8 * (ENCODER + DECODER):,} tokens per step" in text, text

# It writes about what its encoder reads: the same over a cache, for which the encoder runs once, also where the text
# grows longer than the model sees. Before that the prompt is read three times, to see that both ways agree.
words = ("generate", "one", "--plugin", fixture, "--prompt", "ab", "--tokens", "40", "--json")
texts = {}
for name, options in (("cached", ()), ("whole", ("--no-cache",))):
    os.environ["MH_ENCODED"] = str(trial.folder / name)
    texts[name] = json.loads(trial.run(*words, "--sequence", "encoder=what the encoder reads", *options).splitlines()[-1])
    texts[name]["encoded"] = len((trial.folder / name).read_text()) // LAYERS
del os.environ["MH_ENCODED"]
assert texts["cached"]["cached"] and texts["cached"]["ids"] == texts["whole"]["ids"], texts
assert texts["cached"]["encoded"] == 1 + 3 and texts["whole"]["encoded"] == 40 + 2, texts
other = json.loads(trial.run(*words, "--sequence", "encoder=something else").splitlines()[-1])
assert other["ids"] != texts["cached"]["ids"]
for options, why in (
    ((), "the model reads the sequence `encoder` in addition, of which there is no token"),
    (("--sequence", "encoder=" + "x" * (ENCODER + 1)), f"has {ENCODER + 1} tokens, the model reads {ENCODER}"),
    (("--sequence", "encoder=x", "--sequence", "image=y"), "the model reads no sequence `image`"),
):
    assert why in trial.run(*words, *options, code=5), why
assert "expected NAME=TEXT" in trial.run(*words, "--sequence", "encoder", code=2)
