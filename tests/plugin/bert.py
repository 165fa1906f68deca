#!/usr/bin/env python3
"""BERT and its corpus: every layout has the numbers of one rank, a resumed run those of one that was not stopped, plans know
it, evaluation tells how many hidden tokens it finds, and what it cannot do is refused in a sentence."""

import json

from trial import Trial

trial = Trial("bert", """
[model]
use = "bert"
layers = 4
hidden = 32
heads = 4
seq_length = 64
[data]
use = "bert"
paths = ["texts"]
extensions = [".txt"]
whole_words = true
max_ngram = 3
split = [80, 20, 0]
[tokenizer]
use = "byte"
special = true
[batch]
global = 8
[train]
iters = 4
eval_interval = 0
[optimizer]
lr = 0.003
""")
trial.write_texts()


def same(layouts, *sets, pair="order", precision="float64"):
    assert "corpus bert" in trial.same(layouts, f"data.pair={pair}", *sets, precision=precision)


same("tensor=2; tensor=2,sequence=true; data=2,zero=1; data=2,zero=3; context=2; context=2,context_method=all_to_all; "
     "pipeline=2; pipeline=4,schedule=zb-h1; tensor=2,sequence=true,pipeline=2")
same("tensor=2,sequence=true; context=2,context_method=all_gather; pipeline=2,data=2,zero=1", "model.norm_placement=pre", "model.dropout=0.1",
     "recompute.use=full", pair="next")
same("tensor=2,sequence=true; data=2,zero=3", "model.pair_head=false", "model.tied=false", pair="none", precision="bf16")

whole = trial.resumed()
assert set(whole[0]) >= {"lm loss", "sop loss"} and len(whole) == 4, whole
# A layer more: products with 12 times 32 by 32 weights a token, and two with each of 64 keys, also those behind it; thrice with
# backward.
one, two = (json.loads(trial.run("plan", "bert.toml", "--on", "h100", "--json", sets=("device=cpu", f"model.layers={n}"))) for n in (1, 2))
assert two["model_flops"] - one["model_flops"] == 3 * 8 * 64 * 2 * (12 * 32 * 32 + 2 * 64 * 32)

text = trial.run("eval", "bert.toml", "--weights", "whole")
assert "lm accuracy 0." in text and "sop accuracy" in text, text
text = trial.run("generate", "whole", "--prompt", "red green", code=5)
assert "cannot continue a text" in text or "does not continue one" in text, text

# Hidden tokens: those of a word that stands in the texts are found, several at once.
trial.run("run", "bert.toml", "--run-dir", "learned", sets=("train.iters=150", "optimizer.lr=0.01", "model.positions=rope",
                                                              "data.pair=none", "model.pair_head=false"))
found = json.loads(trial.run("fill-mask", "learned", "--text", "green tr[MASK]e bl[MASK]e", "--top", "3", "--json"))
assert [len(guesses) for guesses in found["hidden"]] == [3, 3], found
for guesses in found["hidden"]:
    shares = [guess["probability"] for guess in guesses]
    assert shares == sorted(shares, reverse=True) and 0 < sum(shares) <= 1 + 1e-9, guesses
best = [guesses[0]["token"] for guesses in found["hidden"]]
assert found["text"] == f"green tr{best[0]}e bl{best[1]}e", found
text = trial.run("fill-mask", "learned", "--text", "green tr[MASK]e")
assert text.startswith("green tr") and "GUESS  [MASK] 1" in text and "%" in text, text
assert "the text hides no token" in trial.run("fill-mask", "learned", "--text", "green tree", code=2)
assert "has 66 tokens, the model sees 64" in trial.run("fill-mask", "learned", "--text", "[MASK]" + 63 * "r", code=5)

trial.refused(
    ("tokenizer.special=false", "needs the special token [CLS], which the tokenizer does not have"),
    ("model.seq_length=4", "has no room for two passages"),
    ("model.causal=true", "BERT reads to both sides"),
    ("model.activation=swiglu", "the head's dense layer has this activation"),
    ("model.norm_placement=branch", "BERT's norms are before a part (pre) or behind the sum"),
    ("model.head_bias=true", "BERT's output layer has a bias as it is"),
    ("model.logit_scale=0.5", "and have no scale"),
    ("model.logit_cap=30", "and have no cap"),
    ("model.vocab=256", "lies outside the model's vocabulary"),
)
