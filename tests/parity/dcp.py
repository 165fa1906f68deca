"""torch.distributed.checkpoint and torch.save, both ways: what megahost writes dcp.load reads with equal bits, optimizer state
and all, and folders that PyTorch wrote, of one process or of two, give the logits of the model that they hold."""

import json
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import tempfile
import warnings

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

import models
import program

warnings.filterwarnings("ignore", message="torch.distributed is disabled")
LAYOUT = ["--nproc", 4, "--set", "parallel.tensor=2", "--set", "parallel.data=2", "--set", "parallel.zero=1"]
TRAINED = ["--set", "batch.global=4", "--set", "train.iters=2", "--set", "checkpoint.interval=1"]
problems = []


def expect(condition, text):
    if not condition:
        problems.append(text)


def native(folder):
    """The tensors of a run's newest checkpoint of one file."""
    steps = sorted((folder / "checkpoints").glob("step-*"))
    files = list(steps[-1].glob("*.safetensors"))
    assert len(files) == 1, files
    return load_file(files[0])


def loaded(folder):
    """The whole result of dcp.load for a folder."""
    metadata = dcp.FileSystemReader(folder).read_metadata()
    state = {name: torch.full(tuple(item.size), 77, dtype=item.properties.dtype)
             for name, item in metadata.state_dict_metadata.items() if hasattr(item, "size")}
    state["megahost.state"] = ""
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    return state


def compare(what, folder, expected):
    found = loaded(folder)
    state = json.loads(found.pop("megahost.state"))
    expect("sections" in state, f"{what}: its state is no run's")
    expect(found.keys() == expected.keys(), f"{what}: other names than {sorted(expected)}: {sorted(found)}")
    for name, value in expected.items():
        same = name in found and found[name].dtype == value.dtype and torch.equal(found[name], value)
        expect(same, f"{what}: {name} has other bits")
    print(f"{what}: {len(expected)} tensors", flush=True)


def ours_read_by_theirs(folder):
    run = lambda name, *words: program.run("run", folder / "recipe.toml", "--weights", folder / "model",
                                           "--run-dir", folder / name, *TRAINED, *words)
    run("native")
    program.run("checkpoint", "export", folder / "native", "--to", "dcp", "-o", folder / "exported", "--file-size", 0.1)
    expect(len(list((folder / "exported").glob("*.distcp"))) > 1, "the export is one file")
    compare("export --to dcp", folder / "exported", native(folder / "native"))
    # A run of four ranks that saves in it, and goes on.
    run("ranks", "--set", "checkpoint.use=dcp", *LAYOUT)
    step = folder / "ranks/dcp/step-000000000002"
    expect(len(list(step.glob("*.distcp"))) == 4, f"four ranks wrote {list(step.iterdir())}")
    program.run("checkpoint", "import", folder / "ranks", "-o", folder / "imported")
    compare("checkpoint.use = dcp", step, native(folder / "imported"))
    expect("0 differ" in program.run("checkpoint", "diff", folder / "ranks", folder / "imported", "--all"), "import: other bits")
    for name, words in (("ranks", ["--set", "checkpoint.use=dcp", *LAYOUT]), ("imported", [])):
        text = program.run("run", folder / "recipe.toml", "--weights", folder / name, "--run-dir", folder / (name + "-on"),
                           "--set", "train.iters=1")
        expect("weights:" in text, f"{name} gives no weights: {text}")
    text = program.run("run", folder / "recipe.toml", "--run-dir", folder / "ranks", "--resume", *TRAINED, "--set", "train.iters=3",
                       "--set", "checkpoint.use=dcp", *LAYOUT)
    expect((folder / "ranks/dcp/step-000000000003/.metadata").exists(), f"the run did not go on: {text}")


def rows():
    """The rows of the table in docs/checkpoints.md that this test proves."""
    text = (pathlib.Path(__file__).parents[2] / "docs/checkpoints.md").read_text()
    logits = "`eval` and `run --weights` | all bits of the weights and of the logits"
    state = "all bits of weights and optimizer state"
    for row in (f"run, any layout | `checkpoint export --to dcp`, `dcp.load` | {state}",
                f'run, `checkpoint.use = "dcp"` | `dcp.load` | {state}',
                f"`dcp.save` of a state_dict, by itself or in a dict | {logits}",
                f"`dcp.save` of two ranks' DTensors, split or replicated | {logits}",
                f"`torch.save` of a state_dict (`pytorch_model.bin`, `.pt`) | {logits}"):
        expect(f"| {row} |\n" in text, f"docs/checkpoints.md has no row {row}")


SHARDED = """
import os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method="file://" + folder + "/meet", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
state = torch.load(folder + "/state.pt")
sharded = {name: distribute_tensor(value, mesh, [Shard(min(1, value.dim() - 1)) if i % 3 else Replicate()])
           for i, (name, value) in enumerate(state.items())}
dcp.save({"model": sharded, "step": 7, "optimizer": {"lr": 0.1, "m": sharded[next(iter(sharded))]}}, checkpoint_id=folder + "/two")
dist.barrier()
os._exit(0)  # without the threads of a group that ends while the interpreter does
"""


def logits_of(folder, weights):
    shutil.rmtree(folder / "model")
    shutil.copytree(weights, folder / "model")
    found, _, _ = program.evaluate(folder)
    return found


def theirs_read_by_ours(case, folder, model):
    expected, _, _ = program.evaluate(folder)
    state = model.state_dict()
    config = folder / "model/config.json"
    kinds = {}
    dcp.save(state, checkpoint_id=folder / "flat", no_dist=True)
    dcp.save({"model": state, "step": 7, "optimizer": {"lr": 0.1}}, checkpoint_id=folder / "nested", no_dist=True)
    torch.save(state, folder / "state.pt")
    workers = [subprocess.Popen([sys.executable, "-c", SHARDED, str(rank), str(folder)], stderr=subprocess.PIPE, text=True)
               for rank in range(2)]
    for worker in workers:
        error = worker.communicate()[1]
        assert worker.returncode == 0, error
    for name in ("flat", "nested", "two"):
        kinds[f"dcp, {name}"] = folder / name
    for name, saved in (("pytorch_model.bin", state), ("model.pt", {"state_dict": state, "epoch": 3})):
        (folder / name[-3:]).mkdir()
        torch.save(saved, folder / name[-3:] / name)
        kinds[name] = folder / name[-3:]
    for name, weights in kinds.items():
        shutil.copy(config, weights)
        found = logits_of(folder, weights)
        expect(torch.equal(found, expected), f"{case.name}, {name}: other logits than those of the safetensors")
        said = program.run("checkpoint", "verify", weights)
        expect("every checksum matches" in said, said)
        print(f"{case.name}, {name}: the same logits", flush=True)
    return kinds["dcp, two"]


def damaged(folder):
    """A flipped bit, which PyTorch does not see."""
    file = max(folder.glob("*.distcp"), key=lambda path: path.stat().st_size)
    good = file.read_bytes()
    place = good.index(b"data/0") + 400
    file.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1:])
    result = program.call("checkpoint", "verify", folder)
    expect(result.returncode == 5 and "does not match its checksum" in result.stdout, f"a flipped bit: {result.stdout}")
    file.write_bytes(good)


class Evil:
    def __reduce__(self):
        return os.system, ("touch " + str(self.mark),)


def evil(folder):
    """A pickle that would run a command."""
    Evil.mark = folder / "ran"
    for name, place in (("evil-dcp", ".metadata"), ("evil-bin", "pytorch_model.bin")):
        (folder / name).mkdir()
        if place == ".metadata":
            (folder / name / place).write_bytes(pickle.dumps(Evil()))
        else:
            torch.save({"w": Evil()}, folder / name / place)
        result = program.call("checkpoint", "inspect", folder / name)
        expect(result.returncode == 5 and "system" in result.stderr, f"{name}: {result.stderr}")
    expect(not Evil.mark.exists(), "a pickle was run")


for case in models.CASES:
    if case.name not in ("llama", "gpt2"):
        continue
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        model, ids = models.random_model(case), models.random_ids(case)[:, :models.SEQ]
        models.save(case, model, ids, folder, length=models.SEQ)
        if case.name == "llama":
            ours_read_by_theirs(folder)
        two = theirs_read_by_ours(case, folder, model)
        damaged(two)
        evil(folder)
rows()
sys.exit("\n".join(problems) if problems else 0)
