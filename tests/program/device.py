#!/usr/bin/env python3
"""Training on a device that takes the step as a program: XLA's CPU plugin, next to LibTorch's CPU."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

program = os.environ["MEGAHOST"]
plugin = os.environ["MEGAHOST_XLA_CPU"]
if not os.path.exists(plugin):
    print("XLA's CPU plugin is not there: ./megahost test program fetches it")
    sys.exit(77)
folder = pathlib.Path(tempfile.mkdtemp(prefix="megahost-device-"))
(folder / "small.toml").write_text("""
precision = "fp32"
[model]
use = "llama"
layers = 1
hidden = 32
heads = 4
seq_length = 32
[data]
use = "mock"
[batch]
global = 4
micro = 2
[train]
iters = 12
eval_interval = 6
eval_iters = 2
[log]
interval = 1
[checkpoint]
interval = 4
""")
pjrt = ["--set", "device.use=pjrt", "--set", f"device.plugin={plugin}", "--set", 'device.options=["cpu_device_count=1"]']


def run(*words, code=0):
    result = subprocess.run([program, *words], cwd=folder, capture_output=True, text=True)
    print(" ".join(words), "\n" + result.stdout + result.stderr, flush=True)
    assert result.returncode == code, result.returncode
    return result.stdout + result.stderr


def records(name):
    rows = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "losses" in row]


def worst(left, right):
    """The largest difference of the losses of two runs, training and validation."""
    a, b = records(left), records(right)
    assert [row["step"] for row in a] == [row["step"] for row in b] and len(a) >= 12
    return max(abs(x["losses"]["lm loss"] - y["losses"]["lm loss"]) for x, y in zip(a, b))


# The same losses, in fp32 and bf16; evaluation and checkpoints see the device's weights.
for precision, most in (("fp32", 1e-5), ("bf16", 2e-2)):
    run("run", "small.toml", "--run-dir", "cpu-" + precision, "--set", "precision=" + precision)
    text = run("run", "small.toml", "--run-dir", "xla-" + precision, "--set", "precision=" + precision, *pjrt)
    assert "pjrt: 1 device (" in text and "of the device for a step" in text
    assert worst("cpu-" + precision, "xla-" + precision) < most, worst("cpu-" + precision, "xla-" + precision)

# A run that is stopped goes on with the same bits, on the device or on the CPU.
run("run", "small.toml", "--run-dir", "stopped", *pjrt, "--set", "train.exit_iters=6")
run("run", "small.toml", "--run-dir", "stopped", *pjrt, "--resume")
assert worst("stopped", "xla-fp32") == 0
run("run", "small.toml", "--run-dir", "moved", *pjrt, "--set", "train.exit_iters=6")
run("run", "small.toml", "--run-dir", "moved", "--resume")
assert worst("moved", "cpu-fp32") < 1e-5

# The device begins with the next step before the numbers of one are read, where nothing is due between them: the same bits
# as where each is waited for (log.params_norm reads the weights after every step).
run("run", "small.toml", "--run-dir", "waiting", *pjrt, "--set", "log.params_norm=true")
assert worst("waiting", "xla-fp32") == 0

# A signal that comes meanwhile ends the run after the step that was begun.
endless = ["run", "small.toml", "--run-dir", "signal", *pjrt, "--set", "train.iters=100000", "--set", "train.eval_interval=0",
           "--set", "checkpoint.interval=0"]
with subprocess.Popen([program, *endless], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
    metrics = folder / "signal/metrics.jsonl"
    while process.poll() is None and (not metrics.exists() or metrics.read_text().count("\n") < 20):
        time.sleep(0.05)
    process.terminate()
    errors = process.stderr.read()
assert process.returncode == 128 + signal.SIGTERM, (process.returncode, errors)
stopped = [row["step"] for row in records("signal")]
assert stopped == list(range(1, len(stopped) + 1)) and len(stopped) >= 20, stopped
until = ["--set", f"train.exit_iters={len(stopped) + 5}"]
run(*endless, "--resume", *until)
run(*[word.replace("signal", "no-signal") for word in endless], *until)
assert [row["losses"] for row in records("signal")] == [row["losses"] for row in records("no-signal")]

# An error of the device names its step; what was saved before is whole, and the run goes on from there.
faulty = [word.replace(plugin, os.environ["MEGAHOST_FAULTY_PJRT"]) for word in pjrt]
os.environ["MEGAHOST_TEST_FAILS"] = "13"  # each step has two numbers
text = run("run", "small.toml", "--run-dir", "faulty", *faulty, code=1)
assert "step 7: the PJRT plugin" in text and "failed while reading a tensor: the device is gone" in text, text
assert [row["step"] for row in records("faulty")] == [1, 2, 3, 4, 5, 6]
del os.environ["MEGAHOST_TEST_FAILS"]
run("run", "small.toml", "--run-dir", "faulty", *pjrt, "--resume")
assert worst("faulty", "xla-fp32") == 0

# Fewer microbatches at first are programs of their own; a padded document's tokens count as on the CPU.
ramp = ["--set", "batch.rampup_start=2", "--set", "batch.rampup_increment=2", "--set", "batch.rampup_samples=8"]
run("run", "small.toml", "--run-dir", "ramp-cpu", *ramp)
run("run", "small.toml", "--run-dir", "ramp-xla", *ramp, *pjrt)
assert worst("ramp-cpu", "ramp-xla") < 1e-5

# Devices of one process are the ranks of a layout: the same losses, checkpoints of whole tensors, dropout's masks. A run
# takes what `program --compile` has compiled, but for a damaged file.
def devices(count, *layout):
    words = [f"parallel.{one}" for one in layout]
    return ["--set", "device.use=pjrt", "--set", f"device.plugin={plugin}", "--set",
            f'device.options=["cpu_device_count={count}"]'] + [word for one in words for word in ("--set", one)]


cache = ["--set", f"device.cache={folder}/cache"]
two = ["--set", "model.dropout=0.2", *devices(2, "data=2", "zero=1"), *cache]
run("run", "small.toml", "--run-dir", "dropout-cpu", "--set", "model.dropout=0.2")
text = run("program", "small.toml", "-o", "two", "--compile", *two)
assert "a step of 1 microbatch compiled in " in text
files = sorted((folder / "cache").iterdir())
assert len(files) == 3 and all(file.name.endswith(".pjrt") for file in files), files  # open, pass and close
written = files[0].stat().st_mtime_ns
text = run("run", "small.toml", "--run-dir", "two", *two, "--set", "train.exit_iters=6")
assert "steps run on 2 devices" in text and files[0].stat().st_mtime_ns == written
os.environ["MEGAHOST_TEST_CLIENTS"] = str(folder / "clients")  # the plugin is opened once
run("run", "small.toml", "--run-dir", "once", *[word.replace(plugin, os.environ["MEGAHOST_FAULTY_PJRT"]) for word in two],
    "--set", "train.exit_iters=1")
assert (folder / "clients").read_text() == "client\n", (folder / "clients").read_text()
run("run", "small.toml", "--run-dir", "two", "--resume", "--set", "model.dropout=0.2")  # on LibTorch's CPU
assert worst("two", "dropout-cpu") < 1e-5
files[0].write_bytes(b"no executable")
text = run("run", "small.toml", "--run-dir", "three", *two)
assert "is compiled anew" in text and files[0].stat().st_size > 1000
assert worst("three", "dropout-cpu") < 1e-5

# Layers as a loop: the same losses; where none are alike a line says so.
four = ["--set", "model.layers=4"]
run("run", "small.toml", "--run-dir", "layers-cpu", *four)
text = run("run", "small.toml", "--run-dir", "layers-xla", *four, *pjrt, "--set", "device.scan=true")
assert "none are a loop" not in text and worst("layers-cpu", "layers-xla") < 1e-5
text = run("program", "small.toml", "-o", "looped", "--scan", *four)
assert ", loops of 4 x " in text and "stablehlo.while" in (folder / "looped/pass.mlir").read_text(), text
text = run("program", "small.toml", "-o", "unlike", "--scan")
assert "no three layers that follow each other are alike" in text and " loops of " not in text, text

# Stages of a pipeline on two devices, by a schedule that puts weight gradients off: a checkpoint of whole tensors, from which
# LibTorch's CPU goes on, and the device again.
stages = [*devices(2, "pipeline=2", 'schedule=zb-h1'), *cache, "--set", "model.layers=2"]
run("run", "small.toml", "--run-dir", "two-layers-cpu", "--set", "model.layers=2")
text = run("run", "small.toml", "--run-dir", "stages", *stages, "--set", "train.exit_iters=4")
assert "steps run on 2 devices" in text
run("run", "small.toml", "--run-dir", "stages", "--resume", "--set", "model.layers=2", "--set", "train.exit_iters=8")
run("run", "small.toml", "--run-dir", "stages", "--resume", *stages)
assert worst("stages", "two-layers-cpu") < 1e-5

# NaN stops the run as on the CPU, with the weights before it.
text = run("run", "small.toml", "--run-dir", "nan", *pjrt, "--set", "optimizer.lr=1e30", code=6)
assert "the state before it is saved" in text

# Recipes that are refused, with a sentence each.
def refused(word, *words, code=2):
    text = run("run", "small.toml", "--run-dir", "refused", *words, code=code)
    assert word in text, text


refused("precision fp16 is in no program yet", *pjrt, "--set", "precision=fp16")
refused("log.num_zeros counts among gradients", *pjrt, "--set", "log.num_zeros=true")
refused("guards.spike needs a step's loss before its update", *pjrt, "--set", "guards.spike=skip")
refused("cannot be opened", "--set", "device.use=pjrt", "--set", "device.plugin=/nowhere/libx.so")
refused("is no PJRT plugin", "--set", "device.use=pjrt", "--set", f"device.plugin={os.environ['MEGAHOST_PLUGIN_PATH']}/optimizers-sgd.so")
refused("this layout needs 2 devices, and device \"pjrt\" has 1", *devices(1, "pipeline=2"), "--set", "model.layers=2")
refused("model.layers 1 is fewer than parallel.pipeline 2", *devices(2, "pipeline=2"))
refused("this layout needs 8 devices, and device \"pjrt\" has 2", *devices(2, "tensor=4", "data=2"))
refused('"four" is not NAME=VALUE', *pjrt, "--set", 'device.options=["four"]')
