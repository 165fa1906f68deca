"""NeuronX Distributed's checkpoints, both ways: torch.load reads what megahost exports as xser.load does, and parts that ranks
save, with queries, keys and values by themselves or joined, give the weights of the whole model."""

import pathlib
import shutil
import sys
import tempfile
import types

import torch
from safetensors.torch import load_file

import models
import program

TENSOR, PIPELINE, STEP = 2, 2, 1
COLUMNS = ("o_proj.weight", "down_proj.weight")
problems = []


class TensorReference:
    """torch_xla's, which is a name in a pickle."""

    def __init__(self, tid):
        self.tid = tid


for name in ("torch_xla", "torch_xla.utils", "torch_xla.utils.serialization"):
    sys.modules[name] = types.ModuleType(name)
TensorReference.__module__ = "torch_xla.utils.serialization"
sys.modules["torch_xla.utils.serialization"].TensorReference = TensorReference


def expect(condition, text):
    if not condition:
        problems.append(text)


def path_of(folder, tensor, stage):
    return folder / f"model/dp_rank_00_tp_rank_{tensor:02d}_pp_rank_{stage:02d}.pt"


def xser_load(path):
    references = torch.load(path, weights_only=False)
    info = torch.load(f"{path}.info.pt", weights_only=True)
    found = {}
    for name, one in references.items():
        found[name] = torch.load(f"{path}.tensors/tensor_{one.tid}.pt", weights_only=True)
        told = info[one.tid]
        expect(told == dict(dtype=found[name].dtype, shape=found[name].shape, expert_model_parallel=False), f"{path}: {told}")
    return found


def xser_save(state, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(f"{path}.tensors").mkdir()
    for number, value in enumerate(state.values()):
        torch.save(value.clone(), f"{path}.tensors/tensor_{number}.pt")
    torch.save({name: TensorReference(number) for number, name in enumerate(state)}, path)


def stage_of(name, layers):
    part = name.split(".")
    if part[1] == "layers":
        return int(int(part[2]) >= layers // PIPELINE)
    return 0 if "embed_tokens" in name else PIPELINE - 1


def part_of(name, value, rank):
    """A rank's part, as ColumnParallelLinear and RowParallelLinear have it."""
    if "norm" in name:
        return value
    return value.chunk(TENSOR, dim=1 if name.endswith(COLUMNS) else 0)[rank]


def sharded(state, tensor, stage, layers, separate):
    """A rank's state_dict of NeuronX's Llama: gates joined, and queries, keys and values under the names of GQAQKVColumnParallelLinear."""
    mine = {name: part_of(name, value, tensor) for name, value in state.items() if stage_of(name, layers) == stage}
    for name in [name for name in mine if name.endswith("gate_proj.weight")]:
        up = mine.pop(name.replace("gate_proj", "up_proj"))
        mine[name.replace("gate_proj", "gate_up_proj")] = torch.cat([mine.pop(name), up])
    for letter in () if separate else "qkv":
        for name in [name for name in mine if f".{letter}_proj." in name]:
            mine[name.replace(f"{letter}_proj.weight", f"qkv_proj.weight_{letter}")] = mine.pop(name)
    return mine


def case(folder):
    one = models.llama("llama", dict(kv_heads=4, vocab=96), num_key_value_heads=4, vocab_size=96)
    model, ids = models.random_model(one), models.random_ids(one)[:, :models.SEQ] % 96
    models.save(one, model, ids, folder, length=models.SEQ)
    program.run("run", folder / "recipe.toml", "--weights", folder / "model", "--run-dir", folder / "run", "--set", "train.iters=1")
    program.run("checkpoint", "export", folder / "run", "-o", folder / "hf", "--dtype", "float32")
    state = load_file(folder / "hf/model.safetensors")
    layers = one.config.num_hidden_layers

    program.run("checkpoint", "export", folder / "run", "--to", "xser", "--tensor", TENSOR, "--pipeline", PIPELINE, "-o",
                folder / "ours", "--dtype", "float32")
    step = folder / f"ours/step_{STEP}"
    expect((step / "done").read_text() == (step / "checkpoint").read_text() == "1", "no marks of a whole checkpoint")
    for tensor in range(TENSOR):
        for stage in range(PIPELINE):
            found, wanted = xser_load(path_of(step, tensor, stage)), sharded(state, tensor, stage, layers, separate=True)
            expect(found.keys() == wanted.keys(), f"rank {tensor}, {stage}: other names: {sorted(found.keys() ^ wanted.keys())}")
            for name in found.keys() & wanted.keys():
                expect(torch.equal(found[name], wanted[name]), f"rank {tensor}, {stage}: {name} has other bits")
    print(f"xser.load: {len(state)} tensors", flush=True)

    for name, separate in (("joined", False), ("separate", True)):
        for tensor in range(TENSOR):
            for stage in range(PIPELINE):
                xser_save(sharded(state, tensor, stage, layers, separate), path_of(folder / name, tensor, stage))
        shutil.copy(folder / "hf/config.json", folder / name)
        said = program.run("checkpoint", "diff", folder / "hf", folder / name)
        expect(f"{len(state)} tensors are the same bit for bit, 0 differ" in said, f"{name}: {said}")
        said = program.run("run", folder / "recipe.toml", "--weights", folder / name, "--run-dir", folder / f"run-{name}", "--set",
                           "train.iters=1")
        expect("weights:" in said, said)
        print(f"{name}: {len(state)} tensors", flush=True)


def rows():
    """The rows of the table in docs/checkpoints.md that this test proves."""
    text = (pathlib.Path(__file__).parents[2] / "docs/checkpoints.md").read_text()
    for row in ("run, Llama | `checkpoint export --to xser`, `xser.load` | all bits of the weights",
                "NeuronX Distributed, `use_xser` | `run --weights` | all bits of the weights"):
        expect(f"| {row} |\n" in text, f"docs/checkpoints.md has no row {row}")


with tempfile.TemporaryDirectory() as temporary:
    case(pathlib.Path(temporary))
rows()
sys.exit("\n".join(problems) if problems else 0)
