#!/usr/bin/env python3
"""The statements of plans hold: the changes that they name have these effects, the parts of a step make the whole, the
recipe that a search writes is the one that it found, and a model of 1008 billion parameters on 3,072 ranks needs less than 1 GiB."""

import json
import os
import pathlib
import resource
import shlex
import subprocess
import tempfile


def megahost(*words, status=0):
    done = subprocess.run([os.environ["MEGAHOST"], *map(str, words)], capture_output=True, text=True,
                          cwd=os.environ["MEGAHOST_SOURCE"], env=os.environ | {"XDG_DATA_HOME": "/nonexistent"})
    assert done.returncode == status, done
    return done.stdout


def plan(*words, fits=True):
    return json.loads(megahost("plan", *words, "--json", status=0 if fits else 1))


def most(planned):
    return max(stage["total"] for stage in planned["stages"])


def alike(one, other, most=1e-9):
    return abs(one / other - 1) <= most


def check_parts(planned):
    for stage in planned["stages"]:
        parts = "parameters", "gradients", "optimizer", "activations", "workspace", "reserved"
        assert sum(stage[part] for part in parts) == stage["total"], stage
    assert alike(sum(planned["step_parts"].values()), planned["step_seconds"], 0.01), planned["step_parts"]


def check_changes(words, fits):
    """Three changes, the one that helps most first; planned one by one they do what was said."""
    before = plan(*words, fits=fits)
    check_parts(before)
    changes = before["changes"]
    assert len(changes) == 3, changes
    for change in changes:
        sets = [word for one in change["sets"] for word in ("--set", one)]
        after = plan(*words, *sets, fits=change["fits"])
        assert alike(after["step_seconds"], change["step_seconds"]), (change, after["step_seconds"])
        assert most(after) - most(before) == change["bytes"], (change, most(after), most(before))
        if fits:
            assert change["fits"] and change["step_seconds"] < 0.99 * before["step_seconds"], change
    ranks = [(not change["fits"], change["step_seconds"] if change["fits"] else change["bytes"]) for change in changes]
    assert ranks == sorted(ranks), ranks
    text = megahost("plan", *words, status=0 if fits else 1).splitlines()
    shown = [shlex.split(line.rsplit(": ", 1)[0])[1::2] for line in text if line.startswith("  --set ")]
    assert shown == [change["sets"] for change in changes], (shown, changes)


def main(folder):
    check_changes(["recipes/llama70b.lua", "--on", "h100"], fits=False)
    check_changes(["recipes/gpt2_124m.lua", "--on", "a10g", "--set", "batch.micro=72", "--set", "batch.global=576"], fits=False)
    check_changes(["recipes/gpt2_124m.lua", "--on", "h100", "--gpus", "8", "--set", "parallel.tensor=2", "--set",
                   "parallel.data=4"], fits=True)

    words = ["tests/cli/tiny.toml", "--on", "h100", "--gpus", "4"]
    recipe = folder / "found.toml"
    best = json.loads(megahost("plan", *words, "--search", "-o", recipe, "--json"))["frontier"][0]
    found = plan(recipe, "--on", "h100")
    assert found["ranks"] == 4 and most(found) == best["bytes"], (found, best)
    assert alike(found["step_seconds"], best["step_seconds"]), (found, best)
    again = plan(*words, *(word for one in best["sets"] for word in ("--set", one)))
    assert alike(found["step_seconds"], again["step_seconds"]), (found, again)

    large = folder / "large.toml"
    large.write_text('preset = ["gpt-1008b", "gpt-1008b-3072"]\ntrain.iters = 10\ndata.use = "mock"\n')
    check_parts(plan(large, "--on", "a100"))


with tempfile.TemporaryDirectory() as temporary:
    main(pathlib.Path(temporary))
taken = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20  # GiB of the largest process
assert taken < 1, f"{taken:.2f} GiB"
