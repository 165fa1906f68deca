#!/usr/bin/env python3
"""Devices of plugins bring their transport, and say how they are planned."""

import json
import os
import pathlib
import subprocess
import tempfile

program = os.environ["MEGAHOST"]
fixture = str(pathlib.Path(os.environ["MEGAHOST_FIXTURES"]) / "own_transport.so")
folder = pathlib.Path(tempfile.mkdtemp(prefix="megahost-devices-"))
(folder / "small.toml").write_text(f"""
plugins = ["{fixture}"]
precision = "fp32"
[model]
use = "llama"
layers = 2
hidden = 32
heads = 4
seq_length = 32
[data]
use = "mock"
[batch]
global = 4
[train]
iters = 3
[log]
interval = 1
""")


def run(*words, code=0, **environment):
    result = subprocess.run([program, *words], cwd=folder, capture_output=True, text=True, env={**os.environ, **environment})
    print(" ".join(words), "\n" + result.stdout + result.stderr, flush=True)
    assert result.returncode == code, result.returncode
    return result.stdout + result.stderr


def losses(name):
    lines = (folder / name / "metrics.jsonl").read_text().splitlines()
    return [row["losses"]["lm loss"] for row in map(json.loads, lines) if "losses" in row]


for layout in ("data", "tensor"):
    for device in ("cpu", "by-store"):
        text = run("run", "small.toml", "--nproc", "2", "--run-dir", f"{layout}-{device}", "--set", f"parallel.{layout}=2",
                   "--set", f"device={device}")
        assert ("by-store connects 1 of 2" in text) == (device == "by-store")
    own, gloo = losses(f"{layout}-by-store"), losses(f"{layout}-cpu")
    assert len(own) == 3 and max(abs(a - b) for a, b in zip(own, gloo)) < 1e-6, (own, gloo)

# Gloo is not connected where a device's own transport carries everything: its interface may not even exist. (It was, and
# dropped at once, which broke the connection of a rank that was still connecting.)
run("run", "small.toml", "--nproc", "2", "--run-dir", "no-gloo", "--set", "parallel.data=2", "--set", "device=by-store",
    GLOO_SOCKET_IFNAME="no-such-interface")
assert losses("no-gloo") == losses("data-by-store")

# The plan is that of the CPU, but for times: the duration of kernels is measured by each plan.
# Hardware of which nothing is known is planned on the machine that is named alone.
def planned(device):
    plan = json.loads(run("plan", "small.toml", "--json", "--set", f"device={device}"))
    for stage in plan["stages"]:
        assert stage.pop("busy_seconds") > 0
    return [plan[key] for key in ("hardware", "stages", "capacity_bytes", "executed_flops", "model_flops")]


assert planned("by-store") == planned("cpu")
text = run("plan", "small.toml", "--set", "device=unplanned", code=2)
assert 'device "unplanned" does not say which machine it is planned for' in text and "--on NAME" in text
run("plan", "small.toml", "--on", "a100")
run("plan", "small.toml", "--on", "a100", "--set", "device=unplanned") # by the plain forms of operators
# The meaning of "auto" for a device is the one that the device states.
def automatic(device):
    text = run("recipe", "show", "small.toml", "--set", f"device={device}", "--set", "precision=auto")
    return next(line for line in text.splitlines() if line.startswith("precision = "))


assert automatic("by-store") == automatic("cpu")
assert automatic("unplanned") == 'precision = "bf16"'
