#!/usr/bin/env python3
"""The same command under torchrun, mpirun and srun (a private Slurm of two nodes), in pods that start their ranks, and in a
script that `megahost launch` has written: the numbers of one rank; a rank that is killed, stopped or given another recipe ends the run. `./megahost test dist` sets the launchers up."""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import small_run

program = os.environ["MEGAHOST"]
its_own = os.environ.get("MEGAHOST_WARM_PROGRAM", program)  # whose ranks are processes with its words
python = os.environ["MEGAHOST_SOURCE"] + "/.deps/parity-env/bin/python"
folder = pathlib.Path(tempfile.mkdtemp(prefix="megahost-launchers-"))
folder.chmod(0o755)  # munge has a user of its own
small_run.write_recipe(folder / "tiny.toml", "train = { iters = 4 }", 'log = { interval = 1, format = "json" }',
                       "comm = { timeout = 20 }")
tensor = ["--set", "parallel.tensor=2"]


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def torchrun(command, *options):
    return [python, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node=2",
            "--master-addr=127.0.0.1", "--master-port=" + free_port(), *options, *command], {}


def torchrun_again(command):
    return torchrun(command, "--max-restarts=1")


def mpirun(command):
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", *command], {}


def srun(command):  # two nodes of this machine have no names that resolve
    return ["srun", "-N", "2", "-n", "2", "--kill-on-bad-exit=1", *command], {
        "SLURM_CONF": str(folder / "slurm/slurm.conf"), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}


def start(launcher, command):
    words, more = launcher(command)
    env = {**os.environ, "OMP_NUM_THREADS": "1", **more}
    return subprocess.Popen(words, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            start_new_session=True)


def losses(run):
    records = [json.loads(line) for line in (folder / run / "metrics.jsonl").read_text().splitlines()]
    return [record["losses"]["lm loss"] for record in records if "losses" in record]


def ranks_of(run):
    """The processes of a run, by its folder's name in their command lines."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode().split("\0")
            if words[0] == its_own and run in words:
                found.append(int(process.name))
        except OSError:
            pass
    return found


def rank_one(run):
    """Its process: rank 0 is the one that says what became of the others."""
    for pid in ranks_of(run):
        environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if {b"RANK=1", b"OMPI_COMM_WORLD_RANK=1", b"SLURM_PROCID=1"} & set(environment):
            return pid
    raise AssertionError(f"{run} has no rank 1")


def interrupted(launcher, run, number, *words):
    """A long run whose rank 1 gets a signal; it must end, and leave no rank behind. Returns what it said."""
    started = start(launcher, [its_own, "run", "tiny.toml", "--run-dir", run, *tensor, "--set", "train.iters=1000000",
                               *words])
    metrics = folder / run / "metrics.jsonl"
    while not metrics.exists() or len(metrics.read_text().splitlines()) < 3:
        assert started.poll() is None, started.stdout.read()
        time.sleep(0.1)
    begin = time.time()
    os.kill(rank_one(run), number)
    output = started.communicate()[0]
    assert started.returncode != 0, output
    assert not ranks_of(run), f"a rank is left behind\n{output}"
    assert "frame #" not in output, f"a stack of LibTorch's in place of a sentence\n{output}"
    print(f"{run}: over after {time.time() - begin:.0f} s")
    return output


def check_restart():
    """A rank that is killed, and ranks that the launcher starts again: they meet once more, and go on where the run was."""
    run = "restarted"
    started = start(torchrun_again, [its_own, "run", "tiny.toml", "--run-dir", run, "--resume=auto", *tensor, "--set",
                                     "train.iters=600", "--set", "checkpoint.interval=50"])
    while len(list((folder / run).glob("checkpoints/step-*"))) < 2:  # the last may be on its way
        assert started.poll() is None, started.stdout.read()
        time.sleep(0.05)
    os.kill(rank_one(run), signal.SIGKILL)
    output = started.communicate()[0]
    assert started.returncode == 0 and "resumed at step" in output, output
    steps = [json.loads(line)["step"] for line in (folder / run / "metrics.jsonl").read_text().splitlines()]
    assert sorted(set(steps)) == list(range(1, 601)), steps
    print("restarted: every step is there")


def check(launcher, one):
    name = launcher.__name__
    run = start(launcher, [program, "run", "tiny.toml", "--run-dir", name, *tensor])
    output = run.communicate()[0]
    assert run.returncode == 0, f"{name}: status {run.returncode}\n{output}"
    worst = max(abs(a - b) / a for a, b in zip(one, losses(name), strict=True))
    assert worst < 1e-5, (name, one, losses(name))
    print(f"{name}: losses of one rank to {worst:.0e}")

    interrupted(launcher, name + "-killed", signal.SIGKILL)
    output = interrupted(launcher, name + "-stopped", signal.SIGSTOP, "--set", "comm.timeout=8")
    assert "does not answer" in output, output

    # Each rank chooses its recipe by its own number, whatever the launcher calls it.
    other = ('r=${RANK:-${OMPI_COMM_WORLD_RANK:-$SLURM_PROCID}}; '
             f'exec "{program}" run tiny.toml --run-dir {name}-other --set parallel.tensor=2 --set optimizer.lr=0.00$((r+1))')
    for _ in range(3):  # srun may end a step before it has passed on what its ranks said
        begin = time.time()
        run = start(launcher, ["sh", "-c", other])
        output = run.communicate()[0]
        if "rank 1 has" in output:
            break
    assert run.returncode != 0 and "rank 1 has another recipe than rank 0: lr = 0.002" in output, output
    if launcher is torchrun:  # its table of causes has the error, and not only that a rank has failed
        assert re.search(r"error_file: /.*\n *traceback *: .*rank 1 has another recipe than rank 0", output), output
    print(f"{name}: another recipe: over after {time.time() - begin:.0f} s")


def check_pods(one):
    """Two pods of two ranks each, which start them themselves: variables as PyTorchJob sets them, and an Indexed Job has."""
    for name, index in (("pytorchjob", "PET_NODE_RANK"), ("indexed", "JOB_COMPLETION_INDEX")):
        port = free_port()
        pods = []
        for node in range(2):
            env = {**os.environ, "PET_NNODES": "2", "PET_NPROC_PER_NODE": "2", "PET_MASTER_ADDR": "127.0.0.1",
                   "PET_MASTER_PORT": port, index: str(node), "OMP_NUM_THREADS": "1"}
            if name == "pytorchjob":  # RANK is the pod's number
                env |= {"RANK": str(node), "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            pods.append(subprocess.Popen([program, "run", "tiny.toml", "--run-dir", name, *tensor], cwd=folder, env=env,
                                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        outputs = [pod.communicate(timeout=120)[0] for pod in pods]
        assert [pod.returncode for pod in pods] == [0, 0], outputs
        worst = max(abs(a - b) / a for a, b in zip(one, losses(name), strict=True))
        assert worst < 1e-5, (name, one, losses(name))
        print(f"{name}: losses of one rank to {worst:.0e}")


def check_launched(one):
    """The files of `megahost launch` for Slurm, on its two nodes; the machine of the plan is a row of our own."""
    small_run.write_hardware(folder / "own", ranks=1)
    env = {**os.environ, "MEGAHOST_RECIPE_PATH": f"{folder}/own:{os.environ['MEGAHOST_RECIPE_PATH']}",
           "SLURM_CONF": str(folder / "slurm/slurm.conf"), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(),
           "PATH": f"{pathlib.Path(program).parent}:{os.environ['PATH']}"}
    words = [program, "launch", "tiny.toml", "--target", "slurm", "--nodes", "2", "--instance", "mine", "-o", "job",
             "--sbatch=--wait", "--hours", "1", "--submit", *tensor, "--set", "checkpoint.dir=launched"]
    run = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=180)
    output = "".join(file.read_text() for file in folder.glob("tiny-*.out"))
    assert run.returncode == 0 and "Submitted batch job" in run.stdout, (run, output)
    worst = max(abs(a - b) / a for a, b in zip(one, losses("launched"), strict=True))
    assert worst < 1e-5, (one, losses("launched"))
    print(f"sbatch: losses of one rank to {worst:.0e}")


alone = subprocess.run([program, "run", "tiny.toml", "--run-dir", "one"], cwd=folder, capture_output=True, text=True)
assert alone.returncode == 0, alone.stderr
slurm = pathlib.Path(__file__).with_name("slurm.sh")
for tool in ("mpirun", "srun", "slurmctld", "munged"):
    assert shutil.which(tool), f"{tool} is missing: ./megahost test dist installs it"
try:
    for launcher in (torchrun, mpirun, srun):
        if launcher is srun:
            subprocess.run([slurm, "up", folder / "slurm"], check=True, timeout=180)
        check(launcher, losses("one"))
    check_pods(losses("one"))
    check_launched(losses("one"))
    check_restart()
finally:
    subprocess.run([slurm, "down", folder / "slurm"], check=False)
    sys.stdout.flush()
