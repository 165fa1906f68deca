#!/usr/bin/env python3
"""The modules of four tiny recipes are what they were, in each process: operations that they are made of, and their text by
its hash. Nothing of XLA is needed.

usage: modules.py [--update]: writes modules.txt
"""

import collections
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile

TINY = ["model.layers=1", "model.hidden=16", "model.heads=2", "model.seq_length=8", "model.vocab=256", "data.use=mock",
        "precision=fp32", "batch.global=2", "batch.micro=1", "train.iters=3"]
RECIPES = {
    "gpt": ["model.use=gpt", "model.dropout=0.1"],
    "llama": ["model.use=llama", "precision=bf16", "recompute.use=full", "parallel.tensor=2", "parallel.sequence=true"],
    "narrow moe": ["model.use=moe", "model.experts=4", "model.expert_hidden=8", "model.capacity_factor=1.5", "model.capacity_drop=probability",
            "model.capacity_pad=true", "parallel.data=2", "parallel.zero=1"],
    "stages": ["model.use=gpt", "model.layers=2", "parallel.pipeline=2"],
}
KEPT = pathlib.Path(__file__).parent / "modules.txt"
folder = pathlib.Path(tempfile.mkdtemp(prefix="megahost-modules-"))
(folder / "tiny.toml").write_text("")


def module(name, number):
    """The files of a recipe's program."""
    words = [word for one in RECIPES[name][:1] + TINY + RECIPES[name][1:] for word in ("--set", one)]
    words += ["--narrow"] if name.startswith("narrow") else []
    out = folder / f"{name}-{number}"
    subprocess.run([os.environ["MEGAHOST"], "program", "tiny.toml", "-o", str(out), *words], cwd=folder, check=True)
    return {file.name: file.read_text() for file in sorted(out.iterdir())}


def described(name):
    files = module(name, 1)
    assert files == module(name, 2), f"{name}: another process writes other modules"
    hashes = {file: hashlib.sha256(text.encode()).hexdigest()[:16] for file, text in files.items()}
    lines = [f"{name} step.json {hashes['step.json']}"]
    for file, text in files.items():
        if file.endswith(".mlir"):
            lines += [f"{name} {file} {hashes[file]}", *counted(name, text)]
    return lines


def counted(name, text):
    """A line for each operation, and how often it is there."""
    if name.startswith("narrow"):
        # Ids of groups and dimensions are attributes, in 64 bits by the language.
        values = re.sub(r"(array<i64: [^>]*>|: i64|tensor<[0-9x]+xi64>(?=,|}))", "", text)
        assert not re.search(r"f64|i64", values), re.search(r".*(f64|i64).*", values).group(0)
    assert "?" not in text, "a dynamic shape"
    operations = collections.Counter(re.findall(r"\b(?:stablehlo|chlo)\.([a-z_]+)", text))
    return [f"  {operation} {count}" for operation, count in sorted(operations.items())]


now = "\n".join(line for name in RECIPES for line in described(name)) + "\n"
if sys.argv[1:] == ["--update"]:
    KEPT.write_text(now)
elif now != KEPT.read_text():
    sys.exit(f"modules differ from {KEPT}; modules.py --update keeps these:\n{now}")
