"""The small recipe of the suite."""

RECIPE = """
name = "small"
device = "cuda"
precision = "bf16"
[model]
use = "llama"
layers = 2
hidden = 64
heads = 4
seq_length = 32
[data]
use = "mock"
[tokenizer]
use = "byte"
[batch]
global = 2
micro = 1
[train]
iters = 2
[log]
interval = 1
tensorboard = false
"""


def write(folder):
    file = folder / "small.toml"
    file.write_text(RECIPE)
    return file
