#!/usr/bin/env python3
"""Ranks that are slower than the others: a rank that gets a quarter of its processor is named by `doctor --ranks`, by
`run --preflight`, which does not train, and by a run's own comparison, with the part that makes the difference."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import threading
import time

PROGRAM = os.environ["MEGAHOST"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
folder = pathlib.Path(tempfile.mkdtemp(prefix="megahost-unlike-"))
(folder / "tiny.toml").write_text(
    """
name = "tiny"
precision = "fp32"
model = { use = "llama", layers = 4, hidden = 128, heads = 4, seq_length = 64 }
data = { use = "mock" }
batch = { global = 8, micro = 4 }
train = { iters = 110 }
log = { interval = 50 }
checkpoint = { save_at_end = false }
parallel = { data = 2 }
"""
)


def process_of(run, rank):
    """The process of a rank, once it is there."""
    while run.poll() is None:
        for child in pathlib.Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split():
            try:
                variables = pathlib.Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
                if b"MEGAHOST_RANK=%d" % rank in variables:
                    return int(child)
            except OSError:
                pass
        time.sleep(0.01)
    raise AssertionError(run.communicate())


@contextlib.contextmanager
def slowed(run, rank, when=lambda: True):
    """Stops a rank three quarters of the time, a few milliseconds at a time."""
    over = threading.Event()

    def slow():
        process = process_of(run, rank)
        with contextlib.suppress(ProcessLookupError):
            while not when():
                time.sleep(0.01)
            while not over.is_set():
                os.kill(process, signal.SIGSTOP)
                time.sleep(0.009)
                os.kill(process, signal.SIGCONT)
                time.sleep(0.003)

    thread = threading.Thread(target=slow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def started(*words):
    return subprocess.Popen([PROGRAM, *words], cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True)


def end(run, code):
    output = run.communicate()[0]
    print(output, flush=True)
    assert run.returncode == code, run.returncode
    return output


def end_alike(*words):
    """The output of a command that finds its ranks alike, in one of three times: what else the machine does may slow one
    rank for as long as it is measured."""
    for _ in range(3):
        run = started(*words)
        output = run.communicate()[0]
        print(output, flush=True)
        if run.returncode == 0:
            return output
    raise AssertionError(run.returncode)


# Ranks that are alike, as text and for programs.
text = end_alike("doctor", "--ranks", "2")
assert "The ranks are alike." in text and "all-reduce of all: " in text, text
found = json.loads(end_alike("doctor", "--ranks", "3", "--json"))
assert len(found["ranks"]) == 3 and found["faults"] == [] and found["all_reduce_bytes_per_s"] > 0, found
for i, rank in enumerate(found["ranks"]):
    assert rank["gemm_flops_per_s"] > 1e8 and rank["copy_bytes_per_s"] > 1e7 and rank["disk_bytes_per_s"] > 1e5, rank
    assert [rate > 0 for rate in rank["link_bytes_per_s"]] == [j != i for j in range(3)], rank
    assert abs(rank["clock_seconds"]) < 0.5, rank
assert not list(folder.glob(".preflight*"))

# One that is slow, one whose disk is not there, and all of them next to what plans count on.
run = started("doctor", "--ranks", "2")
with slowed(run, 1):
    text = end(run, 4)
assert "! rank 1 on " in text and "is slow: GEMMs reach " in text and "error: the ranks are not alike: rank 1 on " in text, text
text = end(started("doctor", "--ranks", "2", "--disk", "nowhere"), 4)
assert text.count("cannot write: ") >= 2 and "nowhere" in text, text
text = end(started("doctor", "--ranks", "2", "--on", "h100"), 4)
assert "ranks 0 and 1 reach " in text and "in GEMMs, and plans for h100 count on " in text, text
assert "give --ranks N" in end(started("doctor", "--disk", "."), 2)

# The same before a run, which is then none.
words = ["run", "tiny.toml", "--nproc", "2", "--preflight"]
text = end_alike(*words, "--run-dir", "healthy", "--set", "train.iters=2")
assert "The ranks are alike." in text and "step" in text, text
run = started(*words, "--run-dir", "refused")
with slowed(run, 0):
    text = end(run, 4)
assert "rank 0 on " in text and not (folder / "refused").exists(), text

# A rank that becomes slow while it trains; the same run without that names no rank.
run = started("run", "tiny.toml", "--nproc", "2", "--run-dir", "slow")
with slowed(run, 1, lambda: (folder / "slow/metrics.jsonl").exists()):
    text = end(run, 0)
events = [json.loads(line) for line in (folder / "slow/journal.jsonl").read_text().splitlines()]
named = [event["text"] for event in events if event["event"] == "straggler"]
assert named and named[0].startswith("rank 1 on ") and "times as long as the others, most of that in " in named[0], events
assert f"warning: {named[0]}" in text, text
table = json.loads((folder / "slow/ranks.json").read_text())
assert table["last_step"] == 100 and table["ranks"][0]["waiting"] > table["ranks"][1]["waiting"], table
view = subprocess.run([PROGRAM, "watch", "slow"], cwd=folder, capture_output=True, text=True).stdout
assert "ranks, the busiest first: medians of steps 51 to 100" in view and "straggler at step" in view, view
assert 'megahost_rank_busy_seconds{run="slow",rank="1"}' in subprocess.run(
    [PROGRAM, "status", "slow", "--prometheus"], cwd=folder, capture_output=True, text=True).stdout
