#!/usr/bin/env python3
"""A campaign of faults on four ranks: faults.py COUNT [SEED].

Each fault is found, named and survived by `run --max-restarts`, and the weights at the end are those of a run without a fault.
The mean time to recovery, from a fault to the first step behind those that were done when it came, is printed for each kind."""

import atexit
import json
import os
import pathlib
import random
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time

PROGRAM = os.environ["MEGAHOST"]
COUNT = int(sys.argv[1])
SEED = int(sys.argv[2]) if len(sys.argv) > 2 else 1
RANKS = 4
folder = pathlib.Path(tempfile.mkdtemp(prefix="megahost-faults-"))
RECIPE = f"""
name = "faults"
precision = "fp32"
plugins = ["{os.environ["MEGAHOST_FIXTURES"]}/faulty.so"]
model = {{ use = "llama", layers = 2, hidden = 32, heads = 4, seq_length = 16 }}
data = {{ use = "mock" }}
batch = {{ global = 4, micro = 1 }}
optimizer = {{ use = "faulty", lr = 1e-3 }}
lr_schedule = {{ use = "constant" }}
parallel = {{ data = 2, tensor = 2 }}
train = {{ iters = 1000000, exit_iters = 1000000 }}
log = {{ interval = 1000, tensorboard = false }}
checkpoint = {{ interval = 20 }}
comm = {{ timeout = 5, hang_after = 2 }}
"""
(folder / "faults.toml").write_text(RECIPE)


def start(name, *words, **more):
    """Its words go through a pipe: a file would be full where one fault fills the disk."""
    with open(folder / (name + ".output"), "w") as output:
        words_of = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=output)
    process = subprocess.Popen([PROGRAM, "run", "faults.toml", "--run-dir", name, "--nproc", str(RANKS), *words], cwd=folder,
                               stdout=words_of.stdin, stderr=words_of.stdin, **more)
    words_of.stdin.close()
    return process


def said(start_at=0):
    with open(folder / "faulty.output") as file:
        file.seek(start_at)
        return file.read()


def last_step():
    """The step of the newest whole line of the metrics."""
    try:
        with open(folder / "faulty/metrics.jsonl", "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            lines = file.read().split(b"\n")[:-1]
        return json.loads(lines[-1])["step"] if lines else 0
    except (FileNotFoundError, ValueError, KeyError):
        return 0


def journal():
    """The events, but for lines that a full disk has cut off."""
    events = []
    for line in (folder / "faulty/journal.jsonl").read_text().splitlines():
        try:
            events.append(json.loads(line))
        except ValueError:
            pass
    return events


def restarted(since):
    """The step at which the run failed since then, once it has started again; else nothing."""
    events = [one for one in journal() if one["event"] in ("restart", "start") and one["time"] >= since]
    failed = [one["step"] for one in events if one["event"] == "restart"]
    return max(failed) if failed and events[-1]["event"] == "start" else None


def ranks():
    """The processes of the ranks, by number."""
    found = {}
    for child in pathlib.Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split():
        try:
            variables = pathlib.Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            found.update({int(one[14:]): int(child) for one in variables if one.startswith(b"MEGAHOST_RANK=")})
        except OSError:
            pass
    return found


def until(true, what, seconds=120):
    end = time.time() + seconds
    while not true():
        assert run.poll() is None, f"the run has ended with {run.returncode}: {said()[-4000:]}"
        assert time.time() < end, f"{what}: not within {seconds} s\n{said()[-4000:]}"
        time.sleep(0.01)


def send(rank, what):
    os.kill(ranks()[rank], what)


def tell(rank, fault):
    name = folder / f"new-{rank}"
    name.write_text(fault)
    name.rename(folder / f"fault-{rank}")


def kill(rank):
    send(rank, signal.SIGKILL)
    return f"rank {rank} of 4 was ended by signal 9"


def lost_store(_):
    return kill(0)  # which holds the store


def stop(rank):
    send(rank, signal.SIGSTOP)
    return f"waiting for rank {rank} on .*which does not answer"


def spin(rank):
    tell(rank, "spin")
    return f"waiting for rank {rank} on .*, which is busy elsewhere"


def segfault(rank):
    tell(rank, "segfault")
    return f"rank {rank} of 4 .*(signal 11|SIGSEGV|memory)"


def exception(rank):
    tell(rank, "exception")
    return "a fault on purpose"


def nan(rank):
    tell(rank, "nan")
    return "(loss|gradient norm).*(nan|NaN|no finite|inf)"


def slow(rank):
    tell(rank, "slow")
    return f"rank {rank} on .* is slow: .* times as long as the others, most of that in update"


def refused(rank):
    """The first rank of a start dies before the others have found it."""
    before = ranks()
    send(rank, signal.SIGKILL)
    until(lambda: ranks().get(0) not in (None, before.get(0)), "another start")
    send(0, signal.SIGKILL)
    return "rank 0 of 4 was ended by signal 9"


def full_disk(_):
    """No file of the first rank grows beyond some kilobytes until a checkpoint has failed."""
    begin = os.stat(folder / "faulty.output").st_size
    process = ranks()[0]
    limits = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (4096, limits[1]))
    until(lambda: "was not written" in said(begin), "a checkpoint that fails")
    resource.prlimit(process, resource.RLIMIT_FSIZE, limits)
    return "the checkpoint of step .* was not written, earlier ones are untouched: .*File too large"


KINDS = [kill, lost_store, stop, spin, segfault, exception, nan, slow, refused, full_disk]


def unlimited():
    """A write beyond the limit fails, as one to a full disk does, and ends no process."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


draw = random.Random(SEED)
faults = [KINDS[i % len(KINDS)] for i in range(COUNT)]
draw.shuffle(faults)
times = {}
run = start("faulty", "--max-restarts", "1000000", env={**os.environ, "OMP_NUM_THREADS": "1", "TEST_FAULTS": str(folder)},
            preexec_fn=unlimited)
atexit.register(run.kill)  # its ranks end with it
until(lambda: last_step() > 0, "the first step")
for number, fault in enumerate(faults, 1):
    at = last_step() + draw.randint(1, 60)
    until(lambda: last_step() >= at, f"step {at}")
    rank = 0 if fault in (lost_store, full_disk) else draw.randrange(RANKS)
    begin, output = time.time(), os.stat(folder / "faulty.output").st_size
    reached = last_step()
    name = fault(rank)
    until(lambda: re.search(name, said(output)), f"{fault.__name__} of rank {rank}, by the name of {name!r}")
    found = time.time() - begin
    if fault in (slow, full_disk):  # which the run goes on with
        reached = last_step()
    else:
        until(lambda: restarted(begin) is not None, "a restart")
        reached = max(reached, restarted(begin))
    until(lambda: last_step() > reached, "steps behind those that were done")
    times.setdefault(fault.__name__, []).append((found, time.time() - begin))
    print(f"{number:3} of {COUNT}: {fault.__name__} of rank {rank} after step {reached}: named after {found:.1f} s, "
          f"recovered after {time.time() - begin:.1f} s", flush=True)
time.sleep(0.5)
run.send_signal(signal.SIGTERM)
run.wait()
assert run.returncode == 128 + signal.SIGTERM, said()[-4000:]
end = journal()[-1]
assert end["event"] == "end" and end["text"] == "SIGTERM", end

whole = start("whole", "--set", f"train.exit_iters={end['step']}", env={**os.environ, "OMP_NUM_THREADS": "1"})
assert whole.wait() == 0, (folder / "whole.output").read_text()[-4000:]
same = subprocess.run([PROGRAM, "checkpoint", "diff", "whole", "faulty", "--step", str(end["step"]), "--all"], cwd=folder,
                      capture_output=True, text=True)
print(same.stdout + same.stderr)
assert same.returncode == 0
for kind, each in sorted(times.items()):
    print(f"{kind:12} {len(each):3} times, named after {statistics.mean(one[0] for one in each):5.1f} s, "
          f"recovered after {statistics.mean(one[1] for one in each):5.1f} s")
all_times = [one for each in times.values() for one in each]
print(f"{COUNT} faults found, named and survived; weights of step {end['step']} are those of a run without; mean time to recovery "
      f"{statistics.mean(one[1] for one in all_times):.1f} s")
print(subprocess.run([PROGRAM, "status", "faulty"], cwd=folder, capture_output=True, text=True).stdout)
