#!/usr/bin/env python3
"""Checkpoints on the nodes' own disks: nodes are pairs of processes here, each with a folder of its own. Runs that are killed,
and lose the disk of a node, end with the bits of one that was left alone.
usage: local_saves.py [kills]"""

import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

program = os.environ.get("MEGAHOST_WARM_PROGRAM", os.environ["MEGAHOST"])
kills = int(sys.argv[1]) if len(sys.argv) > 1 else 3
dice = random.Random(40)
folder = pathlib.Path(tempfile.mkdtemp(prefix="megahost-local-"))
(folder / "tiny.toml").write_text(
    """
name = "tiny"
precision = "fp32"
model = { use = "llama", layers = 2, hidden = 32, heads = 4, dropout = 0.1, seq_length = 16 }
data = { use = "mock" }
batch = { global = 4, micro = 1 }
train = { iters = 60 }
log = { interval = 1, format = "json", tensorboard = false }
checkpoint = { interval = 25, local_dir = "disk{node}", local_interval = 2 }
comm = { timeout = 20 }
"""
)
layouts = {"zero": "parallel.data=4,parallel.zero=3", "stages": "parallel.pipeline=2,parallel.data=2,parallel.zero=1"}


def start(name, layout, *words):
    """Four processes: ranks 0 and 1 are one node, 2 and 3 the other."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    sets = [word for setting in layouts[layout].split(",") for word in ("--set", setting)]
    processes = []
    for rank in range(4):
        place = {"RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_RANK": str(rank % 2), "LOCAL_WORLD_SIZE": "2",
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        with open(folder / f"{name}.{rank}", "w") as output:
            processes.append(subprocess.Popen(
                [program, "run", "tiny.toml", "--run-dir", name, "--resume=auto", *sets, *words], cwd=folder,
                env={**os.environ, **place, "OMP_NUM_THREADS": "1"}, stdout=output, stderr=output))
    return processes


def said(name):
    return "".join((folder / f"{name}.{rank}").read_text() for rank in range(4))


def finish(name, processes):
    for process in processes:
        process.wait(120)
    assert [process.returncode for process in processes] == [0] * 4, said(name)
    return said(name)


def steps(name):
    """The last step of the run's metrics."""
    try:
        text = (folder / name / "metrics.jsonl").read_text()
    except FileNotFoundError:
        return 0
    found = re.findall(r'^\{"step":(\d+),', text, re.MULTILINE)
    return int(found[-1]) if found else 0


def kill_at(name, processes, step):
    """Ends all processes at once, some time after a step."""
    until = time.time() + 60
    while steps(name) < step and time.time() < until and processes[0].poll() is None:
        time.sleep(0.005)
    time.sleep(dice.random() * 0.03)
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
    for process in processes:
        process.wait(60)


def tensors(name):
    files = (folder / name / "checkpoints" / "step-000000000060").glob("*.safetensors")
    return {path.name: path.read_bytes() for path in files}


def losses(name):
    records = map(json.loads, (folder / name / "metrics.jsonl").read_text().splitlines())
    return [(record["step"], record["losses"]) for record in records if "losses" in record]


def same(name, layout):
    assert losses(name) == losses(f"whole {layout}"), name
    assert tensors(name) == tensors(f"whole {layout}"), name


for layout in layouts:
    finish(f"whole {layout}", start(f"whole {layout}", layout, "--set", "checkpoint.local_interval=0"))
    text = finish(f"local {layout}", start(f"local {layout}", layout))
    assert "saved locally in" in text and "with copies on 1 other nodes" in text, text
    same(f"local {layout}", layout)
    assert not list(folder.glob("disk*/*/node-*")), "a run that is finished leaves nothing on the nodes"

    # Killed at random points, with all that the disks have: between local checkpoints and while they are written.
    name, taken = f"killed {layout}", []
    for number in range(kills):
        processes = start(name, layout)
        kill_at(name, processes, min(58, 7 + (number + 1) * 50 // kills - dice.randrange(6)))
        taken += re.findall(r"the checkpoint of step (\d+) is a local one", said(name))
    taken += re.findall(r"the checkpoint of step (\d+) is a local one", finish(name, start(name, layout)))
    assert taken, said(name)
    same(name, layout)

def lose(name, sentence, *words):
    """A run that is killed some steps after its first local checkpoint, and goes on after the loss."""
    kill_at(name, start(name, "zero", *words), 12)
    yield max((folder / "disk0").glob("tiny-*"), key=lambda place: place.stat().st_mtime)
    text = finish(name, start(name, "zero", *words))
    assert re.search(sentence, text), text
    same(name, "zero")


for _ in lose("lost", r"node 1 has lost its local checkpoint of step \d+ and takes the copy of node 0"):
    shutil.rmtree(folder / "disk1")
for place in lose("changed", r"node 0 has lost its local checkpoint of step \d+ and takes the copy of node 1"):
    for file in (place / "node-00000").rglob("*.safetensors"):
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
for _ in lose("alone", r"the local checkpoint of step \d+ has the parts of 1 of 2 nodes: it is of no use",
              "--set", "checkpoint.local_copies=0"):
    shutil.rmtree(folder / "disk1")
assert "no checkpoint in" in said("alone"), said("alone")  # none is durable yet, and none local is whole
shutil.rmtree(folder)
