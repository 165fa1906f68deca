#!/usr/bin/env python3
"""Runs that hang: the rank is named, and every rank's stacks and last collectives lie in the run folder. Over Gloo on the loopback,
two to four ranks, each told that it is on a machine of its own."""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

PROGRAM = os.environ["MEGAHOST"]
FIXTURES = pathlib.Path(os.environ["MEGAHOST_FIXTURES"])
folder = pathlib.Path(tempfile.mkdtemp(prefix="megahost-hangs-"))
(folder / "tiny.toml").write_text(f"""
name = "tiny"
precision = "fp32"
plugins = ["{FIXTURES}/faulty.so", "{FIXTURES}/skips.so"]
model = {{ use = "llama", layers = 2, hidden = 32, heads = 4, seq_length = 16 }}
data = {{ use = "mock" }}
batch = {{ global = 4, micro = 1 }}
optimizer = {{ use = "faulty", lr = 1e-3 }}
lr_schedule = {{ use = "constant" }}
train = {{ iters = 1000000 }}
log = {{ interval = 1000, tensorboard = false }}
comm = {{ timeout = 60, hang_after = 2 }}
""")
HOST = re.escape(socket.gethostname())


class Run:
    def __init__(self, name, count, *words):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.folder, self.name = folder / name, name
        self.ranks = []
        for rank in range(count):
            place = {"RANK": rank, "WORLD_SIZE": count, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": port}
            env = os.environ | {f"MEGAHOST_{key}": str(value) for key, value in place.items()}
            env |= {"OMP_NUM_THREADS": "1", "TEST_FAULTS": str(folder),
                    "TORCHELASTIC_ERROR_FILE": str(folder / f"{name}-{rank}.json"),
                    "MEGAHOST_TERMINATION_LOG": str(folder / f"{name}-{rank}.message")}
            output = open(folder / f"{name}-{rank}.txt", "w")
            self.ranks.append(subprocess.Popen([PROGRAM, "run", "tiny.toml", "--run-dir", name, "--set", f"parallel.data={count}",
                                                *words], cwd=folder, env=env, stdout=output, stderr=output))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for one in self.ranks:
            one.kill()
            one.wait()

    def said(self):
        return "\n".join((folder / f"{self.name}-{rank}.txt").read_text() for rank in range(len(self.ranks)))

    def until(self, true, what, seconds=60):
        end = time.time() + seconds
        while not true():
            assert time.time() < end, f"{self.name}: {what} not within {seconds} s\n{self.said()}"
            time.sleep(0.02)

    def steps(self):
        metrics = self.folder / "metrics.jsonl"
        return len(metrics.read_text().splitlines()) if metrics.exists() else 0

    def until_steps(self, count):
        self.until(lambda: self.steps() >= count, f"{count} steps")
        time.sleep(1)  # until each rank's process is known to the others

    def names(self, pattern, seconds=10):
        self.until(lambda: re.search(pattern, self.said()), pattern, seconds)

    def report(self, rank):
        file = self.folder / f"hang/rank-{rank}.txt"
        self.until(lambda: file.exists() and "thread" in file.read_text(), f"the report of rank {rank}", 10)
        time.sleep(0.3)
        return file.read_text()

    def is_whole(self, rank):
        """Why, the last collectives, and where the training thread is."""
        text = self.report(rank)
        assert text.startswith(f"rank {rank} on ") and "no progress for" in text, text
        assert re.search(r"^ +\d+ +\d+  \d\d:\d\d:\d\d\.\d{3} +[\d.]+  #\d+ all-reduce in dp:", text, re.M), text
        assert "mh::Trainer::" in text and "mh::HangWatch" in text, text
        return text

    def error_file(self, rank):
        return json.loads((folder / f"{self.name}-{rank}.json").read_text())["message"]["message"]


# A rank that is stopped: another one of its machine writes what the system says of it.
for count, late in ((2, 1), (2, 0), (4, 2)):
    with Run(f"stopped {count} {late}", count) as run:
        run.until_steps(20)
        run.ranks[late].send_signal(signal.SIGSTOP)
        run.names(rf"warning: no progress for \d+ s: waiting for rank {late}( on {HOST})?, which does not answer .*; stacks and last "
                  rf"collectives: .*/hang; the run ends after comm.timeout, 60 s")
        for rank in set(range(count)) - {late}:
            assert "waits in it" in run.is_whole(rank), run.report(rank)
        stopped = run.report(late)
        assert "State: T (stopped)" in stopped and f"process {run.ranks[late].pid}," in stopped, stopped
        assert "it told last that it was in step" in stopped or late == 0, stopped
        speaker = 1 if late == 0 else 0
        assert f"waiting for rank {late}" in run.error_file(speaker)
        message = folder / f"stopped {count} {late}-{speaker}.message"
        assert f"waiting for rank {late}" in message.read_text()
        # It goes on: what was said is taken back.
        run.ranks[late].send_signal(signal.SIGCONT)
        run.names(rf"warning: rank {late} is back after")
        run.until(lambda: not (folder / f"{run.name}-{speaker}.json").exists(), "an error file that is taken back", 5)
        assert message.read_text() == ""

# A rank in an endless loop.
with Run("spinning", 2) as run:
    run.until_steps(20)
    (folder / "new").write_text("spin")
    (folder / "new").rename(folder / "fault-1")
    run.names(rf"waiting for rank 1 on {HOST}, which is busy elsewhere in step \d+, \d+ s after #\d+ ")
    run.is_whole(0)
    assert "Faulty::" in run.is_whole(1), run.report(1)

# A rank that leaves out a collective: it waits in another one than the others.
skips = [word for key in ("use=skips", "layers=2", "hidden=32", "heads=4") for word in ("--set", "model." + key)]
with Run("skipping", 4, *skips) as run:
    run.names(rf"no progress for \d+ s: rank 1 on {HOST} waits in another collective than most, .*; ranks 0, 2 and 3 on {HOST} wait in "
              rf"#\d+ all-reduce in world:0,1,2,3 of \[3\] Float of step \d+", 60)
    for rank in range(4):
        assert "waits in it" in run.is_whole(rank)
    shutil.rmtree(run.folder / "hang")

# A rank that crashes tells its launcher, and the others leave their reports when they lose it.
with Run("crashing", 2) as run:
    run.until_steps(20)
    run.ranks[1].send_signal(signal.SIGSEGV)
    assert run.ranks[1].wait(30) == -signal.SIGSEGV
    assert "ended by signal 11 (Segmentation fault)" in run.error_file(1)
    assert "ended by signal 11" in (folder / "crashing-1.message").read_text()
    assert run.ranks[0].wait(90) == 4, run.said()
    assert "rank 0 lost the others" in run.error_file(0)
    text = run.report(0)
    assert "rank 0 lost the others" in text and re.search(r"#\d+ all-reduce in ", text), text
