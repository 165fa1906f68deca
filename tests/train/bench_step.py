"""The parts that timings of steps share: their options, a recipe of made-up ids, and `megahost bench step`."""

import argparse
import json
import os
import pathlib
import subprocess


def options(steps):
    parser = argparse.ArgumentParser()
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--tiny", action="store_true")
    return parser.parse_args()


def write_recipe(folder, precision, model, batch):
    """Writes a recipe from the fields of its model, whose vocabulary is the tokenizer's, and sequences of one microbatch."""
    recipe = pathlib.Path(folder, "recipe.toml")
    fields = "\n".join(f"{key} = {json.dumps(value)}" for key, value in model.items())
    recipe.write_text(f"""
name = "step"
precision = "{precision}"
[model]
{fields}
[data]
use = "mock"
[tokenizer]
use = "null"
vocab = {model["vocab"]}
[optimizer]
use = "adamw"
[batch]
global = {batch}
micro = {batch}
[train]
iters = 1000
""")
    return recipe


def bench_step(recipe, steps, *words, **environment):
    command = [os.environ["MEGAHOST"], "bench", "step", recipe, "--steps", str(steps), "--json", *words]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=os.environ | environment)
    return json.loads(done.stdout)
