#!/usr/bin/env python3
"""`run --max-restarts N`: ranks that are killed or crash come back, and the run ends with the numbers of one that did not
fail; what another start cannot mend is not tried again."""

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time

program = os.environ["MEGAHOST"]
folder = pathlib.Path(tempfile.mkdtemp(prefix="megahost-restarts-"))
(folder / "tiny.toml").write_text(
    """
name = "tiny"
precision = "fp32"
model = { use = "llama", layers = 2, hidden = 32, heads = 4, seq_length = 16 }
data = { use = "mock" }
batch = { global = 4, micro = 1 }
train = { iters = 300 }
log = { interval = 1, format = "json" }
checkpoint = { interval = 20 }
comm = { timeout = 20 }
"""
)
two = ["--nproc", "2", "--set", "parallel.data=2"]


def start(name, *words):
    output = open(folder / (name + ".output"), "w+")  # a pipe that is not read would stop it
    run = subprocess.Popen([program, "run", "tiny.toml", "--run-dir", name, *words], cwd=folder, stdout=output, stderr=output)
    run.output = output
    return run


def said(run):
    run.output.seek(0)
    return run.output.read()


def end(run, code):
    run.wait()
    text = said(run)
    print(text, flush=True)
    assert run.returncode == code, run.returncode
    return text


def records(name):
    try:
        text = (folder / name / "metrics.jsonl").read_text()
        lines = text[:text.rfind("\n") + 1].splitlines()  # the last one may be half written
    except FileNotFoundError:
        return []
    return [record for record in map(json.loads, lines) if "losses" in record]


def ranks_of(run):
    """Its processes, by number."""
    found = {}
    for child in pathlib.Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split():
        try:
            variables = pathlib.Path(f"/proc/{child}/environ").read_bytes().decode().split("\0")
            found[int(dict(variable.split("=", 1) for variable in variables if variable)["MEGAHOST_RANK"])] = int(child)
        except (OSError, KeyError):
            pass
    return found


def until(run, true):
    while not true():
        assert run.poll() is None, said(run)
        time.sleep(0.005)


def reached(run, name, step):
    until(run, lambda: any(record["step"] >= step for record in records(name)[-1:]))


def fell(run, rank, fault):
    """Lets a rank fail, and waits for its next start."""
    process = ranks_of(run)[rank]
    os.kill(process, fault)
    until(run, lambda: ranks_of(run).get(rank, process) != process)


def numbers(name):
    return [(record["step"], record["losses"], record["gradient_norm"]) for record in records(name)]


end(start("whole", *two), 0)
assert len(numbers("whole")) == 300

# Each fault once the run has come so far; it goes on from the checkpoint before.
run = start("faulty", *two, "--max-restarts", "3")
for step, rank, fault in ((30, 1, signal.SIGKILL), (110, 0, signal.SIGSEGV), (190, 1, signal.SIGABRT)):
    reached(run, "faulty", step)
    fell(run, rank, fault)
text = end(run, 0)
for number, cause in enumerate(("rank 1 of 2 was ended by signal 9", "rank 0 of 2 was", "rank 1 of 2 was"), 1):
    assert f"restart {number} of 3: the run failed after step " in text and cause in text, number
assert numbers("faulty") == numbers("whole")
diff = subprocess.run([program, "checkpoint", "diff", "whole", "faulty"], cwd=folder, capture_output=True, text=True)
assert diff.returncode == 0, diff.stdout + diff.stderr

# One rank without --nproc is watched as well; what was asked to stop stays stopped.
run = start("alone", "--max-restarts", "1")
reached(run, "alone", 30)
fell(run, 0, signal.SIGKILL)
reached(run, "alone", 60)
run.terminate()
text = end(run, 128 + signal.SIGTERM)
assert "restart 1 of 1" in text and "restart 2" not in text

# A loop: three starts in a row come to the same step. Not more starts than allowed. A recipe's mistake.
text = end(start("loop", *two, "--max-restarts", "9", "--set", "optimizer.lr=1e30", "--set", "checkpoint.interval=1"), 6)
assert "restart 2 of 9" in text and "restart 3" not in text
assert "the run is not started again: it failed three times in a row after step" in text
text = end(start("few", *two, "--max-restarts", "1", "--set", "optimizer.lr=1e30"), 6)
assert "restart 1 of 1" in text and "it failed in each of 2 starts, and --max-restarts allows 1" in text
text = end(start("wrong", *two, "--max-restarts", "9", "--set", "optimizer.use=lion", "--set", "optimizer.stochastic_rounding=true",
                 "--set", "optimizer.state_dtype=bf16"), 2)
assert "restart 1" not in text and "another start would meet the same mistake" in text
run = subprocess.run([program, "run", "tiny.toml", "--max-restarts", "2"], cwd=folder, capture_output=True, text=True,
                     env={**os.environ, "PET_NNODES": "2", "PET_NODE_RANK": "0", "PET_NPROC_PER_NODE": "1",
                          "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": "29400"})
assert run.returncode == 4 and "--max-restarts is for a run whose ranks are all on this machine" in run.stderr, run.stderr
