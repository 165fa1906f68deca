#!/usr/bin/env python3
"""A retriever and its corpora: every layout has the numbers of one rank, whose microbatch holds the samples of all data-parallel
ranks; a resumed run those of one that was not stopped; plans know it; `megahost embed` finds what was learned."""

import copy
import json

from trial import Trial

RECIPE = """
[model]
use = "retriever"
layers = 4
hidden = 32
heads = 4
query_length = 32
init_std = 0.2 # gradients of alike embeddings cancel, and round
seq_length = 64
[data]
use = "ict"
paths = ["texts"]
extensions = [".txt"]
split = [80, 20, 0]
[tokenizer]
use = "byte"
special = true
[batch]
global = 8
micro = 4
[train]
iters = 4
eval_interval = 0
[optimizer]
lr = 0.003
"""
trial = Trial("retriever", RECIPE)
trial.write_texts()

# Pairs of a file: of some queries there are fewer hard negatives than the model reads.
words = ["red", "green", "blue", "tree", "house", "river", "stone", "cloud"]
with open(trial.folder / "pairs.jsonl", "w") as file:
    for i in range(64):
        a, b, c = words[i % 8], words[i // 8], words[(i + 3) % 8]
        line = {"query": f"{a} {b}?", "positive": {"title": a, "text": f"the {a} is at the {b}"},
                "negatives": [f"the {c} is at the {b}", f"a {a} and no {c}"][:i % 3]}
        file.write(json.dumps(line) + "\n")
pairs = copy.copy(trial)
pairs.recipe = "pairs.toml"
(trial.folder / pairs.recipe).write_text(RECIPE.replace("""use = "ict"
paths = ["texts"]
extensions = [".txt"]
""", """use = "pairs"
paths = ["pairs.jsonl"]
"""))


def same(layouts, *sets, trial=trial):
    assert f"corpus {'ict' if trial.recipe == 'retriever.toml' else 'pairs'}" in trial.same(layouts, *sets)


same("tensor=2; tensor=2,sequence=true; data=2,zero=1; data=4,zero=3; context=2; pipeline=2; pipeline=4,schedule=zb-h1; "
     "tensor=2,sequence=true,pipeline=2,data=2")
same("tensor=2,sequence=true; context=2,context_method=all_gather; pipeline=2,data=2,zero=1", "model.norm_placement=pre",
     "model.dropout=0.1", "model.attention_dropout=0.1", "model.shared_towers=true", "model.projection_dim=16",
     "model.score_scaling=true", "recompute.use=full")
same("tensor=2,sequence=true; data=2,zero=3", "model.hard_negatives=2", trial=pairs)

whole = trial.resumed()
assert "retrieval loss" in whole[0] and len(whole) == 4, whole
plan = json.loads(trial.run("plan", "retriever.toml", "--on", "h100", "--json", sets=("device=cpu", "parallel.pipeline=2")))
assert plan["model_flops"] > 0

text = trial.run("eval", "retriever.toml", "--weights", "whole")
assert "retrieval loss" in text and "top-1 accuracy 0." in text and "top-5 accuracy" in text, text
text = trial.run("generate", "whole", "--prompt", "red green", code=5)
assert "cannot continue a text" in text, text

# The trained model finds what it has learned: by queries of the split, in an index of a file, and by a query of one's own.
learn = ("train.iters=150", "optimizer.lr=0.005", "model.shared_towers=true", "model.positions=rope", "model.layers=2", "model.norm_placement=pre", "batch.global=16",
         "batch.micro=16", "model.init_std=0.1")
trial.run("run", "pairs.toml", "--run-dir", "learned", sets=learn)
# A folder that others may have made has no other files read, unless the user names them.
words = ("embed", "learned", "--split", "train", "-o", "index", "--query", "red tree?", "--top", "3", "--json")
text = trial.run(*words, code=5)
named = f'data.paths=["{trial.folder}/pairs.jsonl"]'
assert f"--set '{named}'" in text, text
found = json.loads(trial.run(*words, sets=(named,)))
assert found["recall"]["1"] > 0.5 and found["recall"]["20"] >= found["recall"]["5"] >= found["recall"]["1"], found
assert len(found["found"]) == 3 and found["found"][0]["score"] >= found["found"][1]["score"], found
again = json.loads(trial.run("embed", "learned", "--index", "index", "--query", "red tree?", "--top", "3", "--json"))
assert again["found"] == found["found"], (again, found)
# Blocks of a file are tokenised as those of the corpus, titles too: their embeddings have the same scores.
with open(trial.folder / "positives.jsonl", "w") as file:
    for line in (trial.folder / "pairs.jsonl").read_text().splitlines():
        file.write(json.dumps(json.loads(line)["positive"]) + "\n")
alone = json.loads(trial.run("embed", "learned", "--file", "positives.jsonl", "--query", "red tree?", "--top", "64", "--json"))
for block in found["found"]:
    assert min(abs(block["score"] - one["score"]) for one in alone["found"]) < 1e-4 * abs(block["score"]), (block, alone)
(trial.folder / "blocks.txt").write_text("the red is at the tree\n\n{\"title\": \"blue\", \"text\": \"the blue is at the stone\"}\n")
text = trial.run("embed", "learned", "--file", "blocks.txt", "--query", "blue stone?")
assert "2 blocks of blocks.txt" in text and "RANK" in text, text
assert "embeds" in trial.run("embed", "--help")
assert "has 2 embeddings and 1 block" in (
    (trial.run("embed", "learned", "--file", "blocks.txt", "-o", "two"),
     (trial.folder / "two/blocks.jsonl").write_text("{\"text\": \"one\"}\n"),
     trial.run("embed", "learned", "--index", "two", "--query", "red", code=5))[2])
assert "--index is searched by --query" in trial.run("embed", "learned", "--index", "index", code=2)

trial.refused(
    ("tokenizer.special=false", "needs the special token [CLS], which the tokenizer does not have"),
    ("model.query_length=65", "is beyond seq_length 64"),
    ("model.hard_negatives=1", "the corpus ict has no hard negatives"),
    ("model.causal=true", "BERT reads to both sides"),
    ("model.tied=false", "a retriever has no output layer"),
    ("model.logit_cap=30", "a retriever has no output layer"),
    ("model.vocab=256", "lies outside the model's vocabulary"),
    ("data.query=comment", "holds no sample"),
    ("data.titles=[\"a\", \"b\"]", "data.titles has 2 corpora"),
    ("model.use=bert", "the model reads no query"),
)
