#!/usr/bin/env python3
"""BERT and its corpus: every layout has the numbers of one rank, a resumed run those of one that was not stopped, plans know
it, evaluation tells how many hidden tokens it finds, and what it cannot do is refused in a sentence."""

import json
import os
import pathlib
import random
import subprocess
import tempfile

program = os.environ["MEGAHOST"]
folder = pathlib.Path(tempfile.mkdtemp(prefix="megahost-bert-"))
(folder / "texts").mkdir()
words = random.Random(1)
for i in range(40):
    (folder / f"texts/{i}.txt").write_text("".join(
        " ".join(words.choice(("red", "green", "blue", "tree", "house", "river")) for _ in range(words.randint(2, 9))) + "\n" for _ in range(30)))
(folder / "bert.toml").write_text("""
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


def run(*words, sets=(), code=0):
    command = [program, *words]
    for one in sets:
        command += ["--set", one]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    print(" ".join(words), sets, "\n" + result.stdout + result.stderr, flush=True)
    assert result.returncode == code, result.returncode
    return result.stdout + result.stderr


def same(layouts, *sets, pair="order", precision="float64"):
    (folder / f"{pair}.toml").write_text((folder / "bert.toml").read_text().replace("[data]", f'[data]\npair = "{pair}"'))
    text = run("check", f"{pair}.toml", "--layouts", layouts, "--precision", precision, sets=sets)
    assert "every layout matches the single-rank result" in text and "corpus bert" in text


same("tensor=2; tensor=2,sequence=true; data=2,zero=1; data=2,zero=3; context=2; context=2,context_method=all_to_all; "
     "pipeline=2; pipeline=4,schedule=zb-h1; tensor=2,sequence=true,pipeline=2")
same("tensor=2,sequence=true; context=2,context_method=all_gather; pipeline=2,data=2,zero=1", "model.norm_placement=pre", "model.dropout=0.1",
     "recompute.use=full", pair="next")
same("tensor=2,sequence=true; data=2,zero=3", "model.pair_head=false", "model.tied=false", pair="none", precision="bf16")


def losses(run_folder):
    return [json.loads(line)["losses"] for line in (folder / run_folder / "metrics.jsonl").read_text().splitlines() if "losses" in line]


run("run", "bert.toml", "--run-dir", "whole")
run("run", "bert.toml", "--run-dir", "halves", sets=("train.exit_iters=2",))
run("run", "bert.toml", "--run-dir", "halves", "--resume")
whole = losses("whole")
assert set(whole[0]) >= {"lm loss", "sop loss"} and len(whole) == 4, whole
assert losses("halves") == whole, (losses("halves"), whole)
plan = json.loads(run("plan", "bert.toml", "--on", "h100", "--json", sets=("device=cpu", "parallel.pipeline=2")))
assert plan["model_flops"] > 0

text = run("eval", "bert.toml", "--weights", "whole")
assert "lm accuracy 0." in text and "sop accuracy" in text, text
text = run("generate", "whole", "--prompt", "red green", code=5)
assert "cannot continue a text" in text or "does not continue one" in text, text

for sets, why in (
    (("tokenizer.special=false",), "needs the special token [CLS], which the tokenizer does not have"),
    (("model.seq_length=4",), "has no room for two passages"),
    (("model.causal=true",), "BERT reads to both sides"),
    (("model.activation=swiglu",), "the head's dense layer has this activation"),
    (("model.norm_placement=branch",), "BERT's norms are before a part (pre) or behind the sum"),
    (("model.vocab=256",), "lies outside the model's vocabulary"),
):
    result = subprocess.run([program, "run", "bert.toml", "--run-dir", "wrong", *(x for one in sets for x in ("--set", one))], cwd=folder,
                            capture_output=True, text=True)
    assert result.returncode != 0 and why in result.stderr, (sets, result.stderr)
