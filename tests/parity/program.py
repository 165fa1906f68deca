"""Runs the program under test and reads what it writes."""

import os
import re
import subprocess
import sys

import safetensors.torch
import torch

LOGITS = 1e-5  # share of their norm
GRADIENT = 1e-4  # share of the larger of its norm and FLOOR
FLOOR = 1e-6  # share of the norm of all gradients


def call(*arguments):
    return subprocess.run([os.environ["MEGAHOST"], *map(str, arguments)], capture_output=True, text=True)


def run(*arguments):
    command = [os.environ["MEGAHOST"], *map(str, arguments)]
    result = call(*arguments)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}: status {result.returncode}\n{result.stdout}{result.stderr}")
    return result.stdout


def evaluate(folder, recipe="recipe.toml", logits=True, outputs=("logits",)):
    """Logits [batch, seq, vocab], or outputs of another name one after the other, loss and gradients of the model in a folder made by models.save."""
    printed = run("eval", folder / recipe, "--weights", folder / "model", "--ids", folder / "ids.json",
                  *(["--logits", folder / "logits.safetensors"] if logits else []),
                  "--gradients", folder / "gradients.safetensors")
    if logits:
        found = safetensors.torch.load_file(folder / "logits.safetensors")
        logits = torch.cat([found[name] for name in outputs])
    else:
        logits = None
    gradients = safetensors.torch.load_file(folder / "gradients.safetensors")
    loss = float(re.search(r"loss\D*([\d.]+)", printed)[1])
    return logits, loss, gradients


def norm(tensors):
    return sum(tensor.double().norm() ** 2 for tensor in tensors) ** 0.5


def compare(ours, theirs):
    """Sentences about what differs between two results of (logits, loss, gradients)."""
    problems = []

    def check(what, error, allowed):
        if not error <= allowed:
            problems.append(f"{what} differs by {error:.3g}, allowed is {allowed:.3g}")

    if ours[0].shape != theirs[0].shape:
        return [f"logits are {list(ours[0].shape)}, expected {list(theirs[0].shape)}"]
    check("logits", norm([ours[0] - theirs[0]]), LOGITS * norm([theirs[0]]))
    check("the loss", abs(ours[1] - theirs[1]), LOGITS * theirs[1])
    if ours[2].keys() != theirs[2].keys():
        missing, unknown = sorted(theirs[2].keys() - ours[2].keys()), sorted(ours[2].keys() - theirs[2].keys())
        return problems + [f"gradients missing: {missing}; unknown: {unknown}"]
    floor = FLOOR * norm(theirs[2].values())
    for name, gradient in theirs[2].items():
        if ours[2][name].shape != gradient.shape:
            problems.append(f"{name} is {list(ours[2][name].shape)}, expected {list(gradient.shape)}")
            continue
        check(name, norm([ours[2][name] - gradient]), GRADIENT * max(norm([gradient]), floor))
    return problems
