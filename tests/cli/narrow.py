#!/usr/bin/env python3
"""On a terminal of 80 columns no line is longer, so none is broken within a word; what is said stays the same."""

import os
import pathlib
import re
import subprocess
import tempfile

from on_terminal import OnTerminal

WIDTH = 80
SOURCE = pathlib.Path(os.environ["MEGAHOST_SOURCE"])


def on_terminal(folder, words):
    """The output to a terminal, without colours, and the exit status."""
    text, status = OnTerminal([os.environ["MEGAHOST"], *words], columns=WIDTH, stdin=subprocess.DEVNULL, cwd=folder,
                              env={"HOME": str(folder)}).output()
    return re.sub(r"\x1b\[[0-9;]*m", "", text), status


def piped(folder, words):
    return subprocess.run([os.environ["MEGAHOST"], *map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, cwd=folder, env=os.environ | {"HOME": str(folder)})


def shown(text):
    """The lines that stay: a bar is drawn over by what follows it."""
    return [line.rsplit("\x1b[K", 1)[-1].rsplit("\r", 1)[-1] for line in text.split("\n")]


def check(folder, words, same=False):
    text, status = on_terminal(folder, words)
    lines = shown(text)
    assert any(lines), (words, text)
    for line in lines:
        word = re.sub("'[^']*'", "quoted", line.strip())  # to a shell a quoted text is one word
        assert len(line) <= WIDTH or " " not in word, (words, line)
    if same:
        plain = piped(folder, words)
        assert plain.returncode == status, (words, status, text)
        joined = " ".join(lines).replace(" \\ ", " ").split()
        assert joined == plain.stdout.split(), (words, text, plain.stdout)
    return text


def commands(folder):
    """Each command's words: "recipe check"."""
    found = []
    for line in piped(folder, ["--help"]).stdout.splitlines():
        row = re.match(r"  ((?:[a-z][a-z-]* ?)+)", line)
        if row and not line.startswith("  megahost"):
            found.append(row[1].split())
    assert ["recipe", "check"] in found and ["run"] in found and len(found) > 20, found
    return found


def main(folder):
    for name in "tests/cli/tiny.toml", "recipes":
        (folder / pathlib.Path(name).name).symlink_to(SOURCE / name)
    check(folder, ["--help"], same=True)
    for words in commands(folder):
        check(folder, [*words, "--help"], same=True)
    for topic in "guards", "precision", "batch.micro":
        check(folder, ["help", topic], same=True)
    for words in (["plan", "tiny.toml", "--on", "h1000"], ["run", "."], ["runn"], ["run", "tiny.toml", "--sett", "a=1"],
                  ["plan", "tiny.toml", "--on", "h100", "--plugin", "none.so"],
                  ["run", "recipes/llama70b.lua"], ["recipe", "check", "tiny.toml", "--set", "optimizer.lrr=0.1"],
                  ["plan", "tiny.toml", "--on", "h100", "--gpus", "3", "--set", "parallel.tensor=2"]):
        check(folder, words, same=True)
    for words in (["run", "tiny.toml", "--run-dir", "first"], ["presets"], ["presets", "show", "70b-32"], ["plugins", "show", "llama"],
                  ["plan", "first"], ["plan", "tiny.toml", "--on", "h100"], ["mesh", "recipes/llama70b.lua"],
                  ["recipe", "check", "recipes/gpt2_124m.lua"], ["compare", "first", "first"],
                  ["run", "tiny.toml", "--run-dir", "second", "--set", "lr_schedule.use=cosine", "--set", "lr_schedule.min_lr=1e-4",
                   "--set", "train.seed=7"],
                  ["checkpoint", "diff", "first", "second"]):
        check(folder, words)
    text = check(folder, ["eval", "tiny.toml", "--weights", "first", "--set", "train.eval_iters=10",
                          "--set", "data.samples=100"])
    assert "some are read" in " ".join(text.split()), text
    text = check(folder, ["plan", "recipes/llama70b.lua", "--on", "h100", "--set", "parallel.zero=0"])
    said = " ".join(text.split())
    assert "reserve" in said and "%, too much" in said, text


with tempfile.TemporaryDirectory() as temporary:
    main(pathlib.Path(temporary))
