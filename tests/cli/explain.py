#!/usr/bin/env python3
"""`recipe explain` on every leaf of every shipped recipe: one winner, its value, and the place where that was written."""

import json
import os
import pathlib
import re
import subprocess
import sys

source = pathlib.Path(os.environ["MEGAHOST_SOURCE"])
KINDS = {"default", "derived", "machine", "recipe"}


def megahost(*words):
    result = subprocess.run([os.environ["MEGAHOST"], *words], capture_output=True, text=True, cwd=source)
    assert result.returncode == 0, result.stderr
    return result.stdout


def leaves(tree, path=""):
    for key, value in tree.items():
        name = f"{path}.{key}" if path else key
        if isinstance(value, dict) and value:
            yield from leaves(value, name)
        else:
            yield name


def check(recipe, key, text):
    lines = text.splitlines()
    value = lines[0].removeprefix(f"{key} = ")
    assert value != lines[0], f"{recipe} {key}: {lines[0]}"
    layers = [line for line in lines if line.startswith("  -> ")]
    assert len(layers) == 1, f"{recipe} {key}: {len(layers)} winners\n{text}"
    layer = re.split(r"  +", layers[0][5:], maxsplit=1)[0]
    named = layer.startswith(("preset ", "extends "))
    assert layer in KINDS or named, f"{recipe} {key}: layer {layer}"
    assert layers[0] == lines[-1], f"{recipe} {key}: the winner is not the last layer\n{text}"
    if layer != "recipe" and not named:
        return layer
    place = re.search(r"(\S+):(\d+):(\d+)$", layers[0])
    assert place, f"{recipe} {key}: no file:line:column\n{text}"
    line = pathlib.Path(source, place[1]).read_bytes().splitlines()[int(place[2]) - 1]
    assert re.search(rb"\b" + key.split(".")[-1].encode() + rb"\b", line), f"{recipe} {key}: not on {place[0]}"
    assert 1 <= int(place[3]) <= len(line), f"{recipe} {key}: {place[0]}"
    return layer


def main():
    recipes = sorted(str(file.relative_to(source)) for file in (source / "recipes").iterdir()
                     if file.suffix in (".lua", ".toml"))
    assert len(recipes) >= 4, recipes
    for recipe in recipes:
        keys = list(leaves(json.loads(megahost("recipe", "show", recipe, "--format", "json"))))
        blocks = megahost("recipe", "explain", recipe, *keys).split("\n\n")
        assert len(blocks) == len(keys) >= 40, f"{recipe}: {len(blocks)} texts for {len(keys)} keys"
        seen = [check(recipe, key, block) for key, block in zip(keys, blocks)]
        written = [layer for layer in seen if layer == "recipe" or layer.startswith("extends ")]
        assert len(written) >= 10 and seen.count("default") >= 10, seen
        print(f"{recipe}: {len(keys)} keys")


sys.exit(main())
