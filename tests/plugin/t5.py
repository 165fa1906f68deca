#!/usr/bin/env python3
"""T5 and its corpus: every layout has the numbers of one rank, a resumed run those of one that was not stopped, plans know it,
it writes over a cache, and what it cannot do is refused in a sentence."""

import json

from trial import Trial

trial = Trial("t5", """
[model]
use = "t5"
encoder_layers = 2
layers = 2
hidden = 32
heads = 4
buckets = 8
max_distance = 16
encoder_length = 48
seq_length = 24
[data]
use = "t5"
paths = ["texts"]
extensions = [".txt"]
split = [80, 20, 0]
[tokenizer]
use = "byte"
special = true
extra_ids = 8
[batch]
global = 8
[train]
iters = 4
eval_interval = 0
[optimizer]
lr = 0.003
""")
trial.write_texts()


def same(layouts, *sets):
    assert "corpus t5" in trial.same(layouts, *sets)


same("tensor=2; tensor=2,sequence=true; data=2,zero=1; data=2,zero=3; context=2; context=2,context_method=all_to_all; "
     "pipeline=2; pipeline=4,schedule=zb-h1; tensor=2,sequence=true,pipeline=2")
# Version 1.1, and Megatron's form.
same("tensor=2,sequence=true; pipeline=2,data=2,zero=1", "model.activation=geglu_tanh", "model.tied=false", "model.dropout=0.1",
     "recompute.use=full")
same("tensor=2,sequence=true; context=2,context_method=all_gather; pipeline=2", "model.positions=learned", "model.norm=layernorm",
     "model.bias=true", "model.init_std=0.02", "model.encoder_layers=1", "model.layers=3")
same("tensor=2,sequence=true; context=2; context=2,context_method=all_to_all; pipeline=2", "model.positions=rope", "model.rope_base=500")

whole = trial.resumed()
assert len(whole) == 4, whole
large = (trial.folder / "t5.toml").read_text().replace("encoder_layers = 2", "encoder_layers = 24").replace("= 48", "= 512")
(trial.folder / "large.toml").write_text(large)
shown = trial.run("recipe", "show", "large.toml", "--scale")
assert "encoder_layers = 2" in shown and "encoder_length = 24" in shown, shown
plan = json.loads(trial.run("plan", "t5.toml", "--on", "h100", "--json", sets=("device=cpu", "parallel.pipeline=2")))
assert plan["model_flops"] > 0


def stages(*sets):
    """Layers of each stage, of the encoder and the decoder together."""
    planned = json.loads(trial.run("plan", "t5.toml", "--on", "h100", "--json", sets=("device=cpu", *sets)))
    return [stage["layers"] for stage in planned["stages"]]


assert stages("model.encoder_layers=6", "parallel.pipeline=4") == ["embed+2", "2", "2", "2+head"]
# Stages have about the same work: an encoder's layer sees twice a decoder's tokens, and more of a longer encoder.
assert stages("model.encoder_layers=4", "model.layers=4", "model.encoder_length=480", "parallel.pipeline=2") == ["embed+2", "6+head"]
assert stages("model.encoder_layers=5", "model.layers=3", "parallel.pipeline=2",
              "parallel.pipeline_layout=embed+4|4+head") == ["embed+4", "4+head"]

# The encoder runs once for a text.
words = ("generate", "whole", "--sequence", "encoder=red <extra_id_0> green", "--prompt", "<extra_id_0>", "--tokens", "12", "--json")
cached, read = (json.loads(trial.run(*words, *options).splitlines()[-1]) for options in ((), ("--no-cache",)))
assert cached["cached"] and cached["ids"] == read["ids"], (cached, read)

trial.refused(
    ("tokenizer.special=false", "the tokenizer has none"),
    ("tokenizer.extra_ids=1", "sentinels (<extra_id_0>, ...) to stand for them"),
    ("model.seq_length=4", "tokens of the decoder, which reads 4"),
    ("model.encoder_length=2", "has no room for a token, a sentinel and an end"),
    ("parallel.pipeline=8", "model.layers 2 plus model.encoder_layers 2 is fewer than parallel.pipeline 8"),
    ("parallel.pipeline_layout='embed+1|1+head'", "chunks, expected parallel.pipeline 1"),
    ("model.buckets=6", "choose a multiple of 4"),
    ("model.max_distance=4", "the buckets of single distances reach to 4 already"),
    ("model.vocab=256", "lies outside the model's vocabulary"),
)
text = trial.run("run", "t5.toml", "--run-dir", "wrong", code=2, sets=("model.positions=rope", "model.head_dim=7"))
assert "rope rotates pairs, and heads have 7 elements" in text, text
