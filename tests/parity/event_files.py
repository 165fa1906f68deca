"""Event files are what TensorBoard reads: every value, the recipe, and a resumed run without the crashed start's steps."""

import json
import pathlib
import shutil
import tempfile

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

import program

RECIPE = """
name = "events"
precision = "fp32"
[model]
use = "gpt"
layers = 1
hidden = 16
heads = 2
seq_length = 8
[tokenizer]
use = "null"
vocab = 20
[data]
use = "mock"
[batch]
global = 4
micro = 2
[lr_schedule]
use = "cosine"
[train]
iters = 12
eval_interval = 4
eval_iters = 1
[checkpoint]
interval = 3
"""


def read(run):
    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    return events


def curve(events, tag):
    return [(event.step, event.value) for event in events.Scalars(tag)]


def same(found, expected, what):
    assert [step for step, _ in found] == [step for step, _ in expected], f"{what}: {found} is not {expected}"
    for (_, value), (step, other) in zip(found, expected):
        assert abs(value - other) <= 1e-6 * abs(other), f"{what} at {step}: {value} is not {other}"


def check(run):
    """Every curve against metrics.jsonl, which holds the steps that count."""
    events = read(run)
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [metric for metric in metrics if "losses" in metric]
    evaluations = [metric for metric in metrics if "eval" in metric]
    assert [step["step"] for step in steps] == list(range(1, 13)), steps
    assert len(evaluations) == 3, evaluations
    for tag, value in {
        "lm loss": lambda step: step["losses"]["lm loss"],
        "learning-rate": lambda step: step["lr"],
        "grad-norm": lambda step: step["gradient_norm"],
        "batch-size": lambda step: 4,
    }.items():
        same(curve(events, tag), [(step["step"], value(step)) for step in steps], tag)
        same(curve(events, tag + " vs samples"), [(step["samples"], value(step)) for step in steps], tag + " vs samples")
    for tag, value in {
        "iteration-time": lambda step: step["seconds"],
        "tokens-per-second": lambda step: 32 / step["seconds"],
        "mem-max-allocated-bytes": lambda step: step["memory"],
        "world-size": lambda step: 1,
    }.items():
        same(curve(events, tag), [(step["step"], value(step)) for step in steps], tag)
    same(curve(events, "lm loss validation"), [(e["step"], e["eval"]["lm loss"]) for e in evaluations], "validation")
    same(curve(events, "lm loss validation vs samples"), [(4 * e["step"], e["eval"]["lm loss"]) for e in evaluations],
         "validation vs samples")
    assert [step for step, _ in curve(events, "lm loss validation ppl")] == [4, 8, 12]
    assert all(value > 0 for _, value in curve(events, "throughput"))
    text = tensor_util.make_ndarray(events.Tensors("recipe/text_summary")[-1].tensor_proto)[0].decode()
    assert 'name = "events"' in text and text.startswith("```toml"), text


with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    recipe = folder / "recipe.toml"
    recipe.write_text(RECIPE)

    program.run("run", recipe, "--run-dir", folder / "whole")
    check(folder / "whole")
    assert len(list((folder / "whole/tensorboard").iterdir())) == 1

    # The state after a kill behind step 8, with the checkpoint of step 6 and half a record on the
    # disk.
    crashed = folder / "crashed"
    program.run("run", recipe, "--run-dir", crashed, "--set", "train.exit_iters=8")
    shutil.rmtree(crashed / "checkpoints/step-000000000008")
    (first,) = (crashed / "tensorboard").iterdir()
    with first.open("ab") as file:
        file.write(b"\x20\0\0\0\0\0\0\0half")
    assert [step for step, _ in curve(read(crashed), "lm loss")] == list(range(1, 9))
    program.run("run", recipe, "--run-dir", crashed, "--resume")
    assert len(list((crashed / "tensorboard").iterdir())) == 2
    check(crashed)

    program.run("run", recipe, "--run-dir", folder / "none", "--set", "log.tensorboard=false")
    assert not (folder / "none/tensorboard").exists()
