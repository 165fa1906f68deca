"""Checkpoints are files that Python's safetensors reads: true names, global shapes, finite values."""

import pathlib
import tempfile

import safetensors
import torch

import models
import program

case = models.gpt2("files", {})
with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    model = models.random_model(case)
    models.save(case, model, models.random_ids(case), folder)
    program.run("run", folder / "recipe.toml", "--run-dir", folder / "run", "--set", "data.split=[1, 0, 0]")
    tensors = {}
    for path in folder.glob("run/**/*.safetensors"):
        with safetensors.safe_open(path, framework="pt") as file:
            for name in file.keys():
                assert name not in tensors, f"{name} is in two files"
                tensors[name] = file.get_tensor(name)
    for name, tensor in tensors.items():
        assert torch.isfinite(tensor.double()).all(), f"{name} is not finite"
    elements = sum(parameter.numel() for parameter in model.parameters())
    weights = {name: tensor for name, tensor in tensors.items() if not name.startswith("optimizer.")}
    assert list(weights["embedding.word.weight"].shape) == [models.VOCAB, 48], weights["embedding.word.weight"].shape
    assert sum(tensor.numel() for tensor in weights.values()) == elements, sorted(weights)
    print(f"{len(tensors)} tensors, {elements} elements of weights")
