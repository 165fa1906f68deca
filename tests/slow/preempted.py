#!/usr/bin/env python3
"""A job of `megahost launch --target slurm` on a private Slurm of two nodes: preempted by another job, at the end of its time and
after a rank was killed it goes back into the queue by itself, and ends with the weights of a run that was left alone. What
another start cannot mend, and scancel, end it."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "dist"))
import small_run  # noqa: E402

program = os.environ["MEGAHOST"]
source = pathlib.Path(os.environ["MEGAHOST_SOURCE"])
folder = pathlib.Path(tempfile.mkdtemp(prefix="megahost-preempted-"))
folder.chmod(0o755)  # munge has a user of its own
small_run.write_hardware(folder / "own", ranks=1)
small_run.write_recipe(folder / "tiny.toml", "parallel = { data = 2 }", "train = { iters = 2000 }", "log = { interval = 1000 }",
                       "checkpoint = { interval = 500 }", "comm = { timeout = 20 }")
env = os.environ | {"MEGAHOST_RECIPE_PATH": f"{folder}/own:{os.environ['MEGAHOST_RECIPE_PATH']}", "OMP_NUM_THREADS": "1",
                    "SLURM_CONF": str(folder / "slurm/slurm.conf"), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29471",
                    "PATH": f"{pathlib.Path(program).parent}:{os.environ['PATH']}"}


def run(*words, status=0):
    done = subprocess.run([str(word) for word in words], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == status, (done, said())
    return done.stdout


def said():
    return "".join(file.read_text()[-3000:] for file in sorted(folder.glob("*.out")))


def submitted(name, *words):
    """The job's number."""
    said = run(program, "launch", "tiny.toml", "--target", "slurm", "--nodes", 2, "--instance", "mine", "--name", name, "-o", name,
               "--hours", 1, "--submit", "--set", f"checkpoint.dir={name}", *words)
    return said.rsplit("Submitted batch job ", 1)[1].split()[0]


def facts(job):
    return dict(word.split("=", 1) for word in run("scontrol", "show", "job", job).split() if "=" in word)


def records(name):
    try:
        text = (folder / name / "metrics.jsonl").read_text()
    except FileNotFoundError:
        return []
    lines = text[:text.rfind("\n") + 1].splitlines()
    return [record for record in map(json.loads, lines) if "losses" in record]


def until(true, what, seconds=120):
    end = time.time() + seconds
    while not true():
        assert time.time() < end, (what, run("squeue"), said())
        time.sleep(0.1)


def reached(name, step):
    until(lambda: records(name) and records(name)[-1]["step"] >= step, f"step {step} of {name}")


def restarted(job, count):
    until(lambda: facts(job)["Restarts"] == str(count) and facts(job)["JobState"] == "RUNNING", f"start {count} after the first")


def rank_of(job):
    """A rank's process."""
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            variables = (process / "environ").read_bytes().split(b"\0")
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if {f"SLURM_JOB_ID={job}".encode(), b"SLURM_PROCID=1"} <= set(variables) and words[1:2] == [b"run"]:
            return int(process.name)
    raise AssertionError(f"no rank 1 of job {job}")


slurm = source / "tests/dist/slurm.sh"
try:
    subprocess.run([slurm, "up", folder / "slurm"], check=True, timeout=180)
    run(program, "run", "tiny.toml", "--nproc", 2, "--run-dir", "alone", "--set", "checkpoint.dir=alone")
    assert len(records("alone")) == 2000
    job = submitted("job")
    reached("job", 200)
    run("srun", "--partition=first", "--nodes=2", "--exclusive", "sleep", "1")
    restarted(job, 1)
    step = records("job")[-1]["step"]
    reached("job", step + 200)
    run("scancel", "--signal=USR1", job)  # as --signal=USR1@180 does it
    restarted(job, 2)
    step = records("job")[-1]["step"]
    reached("job", step + 200)
    os.kill(rank_of(job), signal.SIGKILL)
    restarted(job, 3)
    until(lambda: facts(job)["JobState"] == "COMPLETED", "the end")
    numbers = {name: [(one["step"], one["losses"], one["gradient_norm"]) for one in records(name)] for name in ("alone", "job")}
    assert numbers["alone"] == numbers["job"]
    run(program, "checkpoint", "diff", "alone", "job")
    starts = [json.loads(line) for line in (folder / "job/journal.jsonl").read_text().splitlines()]
    ends = [one["text"] for one in starts if one["event"] == "end"]
    assert ends[:2] == ["SIGTERM", "SIGUSR1"], ends
    print("preempted, out of time and killed: the weights of a run that was left alone")

    job = submitted("wrong", "--set", "data.use=indexed", "--set", "data.paths=[\"nothing\"]")
    until(lambda: facts(job)["JobState"] == "FAILED", "the end of a job that cannot be")
    assert facts(job)["Restarts"] == "0", facts(job)
    job = submitted("ended", "--set", "train.iters=1000000")
    reached("ended", 100)
    run("scancel", job)
    until(lambda: facts(job)["JobState"] == "CANCELLED", "the end of a job that a person ends")
    time.sleep(8)
    assert facts(job)["Restarts"] == "0" and not run("squeue", "--noheader"), run("squeue")
    print("a mistake and scancel end a job")
finally:
    subprocess.run([slurm, "down", folder / "slurm"], check=False)
    sys.stdout.flush()
