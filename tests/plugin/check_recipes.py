#!/usr/bin/env python3
"""`megahost check RECIPE` trains on the recipe's corpus with the recipe's optimizer: a model that is wrong on its own
data alone, and an optimizer that is wrong over split tensors, are found; sound ones pass, whatever their options."""

import os
import pathlib
import subprocess
import tempfile

program = os.environ["MEGAHOST"]
fixture = str(pathlib.Path(os.environ["MEGAHOST_FIXTURES"]) / "under_layouts.so")
folder = pathlib.Path(tempfile.mkdtemp(prefix="megahost-check-"))
(folder / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 400)
RECIPE = """
[model]
use = "{model}"
layers = 2
hidden = 32
heads = 4
seq_length = 16
[data]
use = "{data}"
{paths}
split = [100, 0, 0]
[batch]
global = 4
[train]
iters = 6
eval_interval = 0
"""


def recipe(model="llama", data="text", text="text.txt"):
    """Written into a file of its own: --set of a plugin drops the fields of the one before."""
    name = f"{model}-{data}-{text}.toml"
    paths = f'paths = ["{text}"]' if data == "text" else ""
    (folder / name).write_text(RECIPE.format(model=model, data=data, paths=paths))
    return name


def check(layout, *sets, of=None, precision="float64", words=()):
    command = [program, "check", of or recipe(), "--layouts", layout, "--precision", precision, *words]
    for one in ("model.layers=1", *sets):
        command += ["--set", one]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    print(result.stdout + result.stderr)
    return result


def same(layout, *sets, used, **more):
    result = check(layout, *sets, **more)
    assert result.returncode == 0 and "every layout matches the single-rank result" in result.stdout, result
    assert used in result.stdout, f"{used!r} is not said: {result.stdout}"


def differs(layout, *sets, where, **more):
    result = check(layout, *sets, **more)
    assert result.returncode == 1 and "DIFFERS" in result.stdout, result
    assert where in result.stdout, f"{where!r} is not said: {result.stdout}"


plugin = ("--plugin", fixture)

# A recipe with one sample a step: `check` has a batch of its own.
(folder / "few.toml").write_text((folder / recipe()).read_text().replace("global = 4", "global = 1"))
same("data=2; tensor=2", of="few.toml", words=("--nproc", "2"), used="corpus text with tokenizer byte")

# A head that is wrong on arrays that only its corpus has.
pairs = recipe("pair-model", "pairs")
same("tensor=2; data=2", of=pairs, words=plugin, used="corpus pairs with tokenizer byte, optimizer adamw, of the recipe")
differs("context=2", of=pairs, words=plugin, where="gradient")
same("context=2", of=recipe("pair-model"), words=plugin, used="corpus text")

# An optimizer that ignores `gather`, and matrices that zero cuts.
lamb = ("optimizer.use=shard-lamb",)
differs("tensor=2", *lamb, words=plugin, where="value after shard-lamb")
differs("data=2,zero=1", *lamb, words=plugin, where="value after shard-lamb")
same("data=2", *lamb, words=plugin, used="optimizer shard-lamb")

# Float32 state that meets gradients of a float64 model.
same("tensor=2; data=2,zero=1", "optimizer.use=averaging", words=plugin, used="optimizer averaging")

# Sound optimizers, with groups and clipping, in every precision; ids beyond the small vocabulary.
groups = 'optimizer.groups=[{match=["layers.7.*", "*.norm.weight", "*_norm.weight"], lr_multiplier=0.5}]'
same("tensor=2", "optimizer.use=muon", groups, "optimizer.clip_grad=0.1", precision="float64,fp32,bf16",
     used="optimizer muon")
same("tensor=2; context=2", of=recipe(data="mock"), used="corpus mock")
same("data=2,zero=1; data=2,zero=3", "optimizer.use=lion", used="optimizer lion")
same("data=2,zero=1; data=2,zero=3; pipeline=2; tensor=2,sequence=true,data=2,zero=1", "model.layers=2",
     "optimizer.use=adafactor", groups, "optimizer.relative_step=true", used="optimizer adafactor")
same("data=2,zero=1; data=2,zero=3; pipeline=2; tensor=2,sequence=true,data=2,zero=1", "model.layers=2",
     "optimizer.use=schedule_free_adamw", groups, used="optimizer schedule_free_adamw")
for use in "soap", "shampoo":
    same("data=2,zero=1; data=2,zero=3; pipeline=2; tensor=2,sequence=true,data=2,zero=1", "model.layers=2",
         f"optimizer.use={use}", groups, "optimizer.precondition_frequency=1", used=f"optimizer {use}")
same("expert=2,data=2; expert=2,tensor=2,sequence=true", "optimizer.use=soap", of=recipe("moe"), used="optimizer soap")
same("data=2", "optimizer.state_dtype=bf16", "optimizer.stochastic_rounding=true", precision="bf16",
     used="optimizer adamw")

assert "half is no number format" in check("tensor=2", precision="fp32,half").stderr

# The options of the recipe's own corpus and tokenizer.
same("tensor=2", 'data.extensions=[".txt"]', "tokenizer.special=true", used="corpus text with tokenizer byte")

# Ranks that are processes read the same.
differs("tensor=2", *lamb, words=(*plugin, "--processes"), where="value after shard-lamb")

# Data that are not here are told.
same("tensor=2", of=recipe(text="absent"), used="samples of the check's own, as its corpus is not here: ")

# Losses are few here, and biases have two elements: what they round in low precision is found by chance.
for name in ("bert_tiny", "ict_tiny"):
    same("tensor=2; context=2", "model.layers=4", of=f"{os.environ['MEGAHOST_RECIPE_PATH']}/{name}.lua", precision="bf16,fp16,fp8",
         used="adamw")
