#!/usr/bin/env python3
"""Real processes over Gloo on the loopback: layouts train like one rank, checkpoints move between layouts,
and no rank that fails, dies or stops leaves the others waiting."""

import json
import os
import pathlib
import re
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time

program = os.environ["MEGAHOST"]
its_own = os.environ.get("MEGAHOST_WARM_PROGRAM", program)  # whose ranks are processes below it, which signals meet
fixtures = pathlib.Path(os.environ["MEGAHOST_FIXTURES"])
folder = pathlib.Path(tempfile.mkdtemp(prefix="megahost-processes-"))
(folder / "tiny.toml").write_text(
    """
precision = "fp32"
[model]
use = "llama"
layers = 2
hidden = 32
heads = 4
kv_heads = 2
seq_length = 16
[data]
use = "mock"
split = [90, 10, 0]
[batch]
global = 4
micro = 1
[train]
iters = 6
eval_interval = 3
eval_iters = 2
[log]
interval = 1
format = "json"
[comm]
timeout = 60
"""
)


def megahost(*words, **options):
    return subprocess.run([program, "run", "tiny.toml", *words], cwd=folder, capture_output=True, text=True, **options)


def layout(text):
    return [word for setting in text.split(",") if setting for word in ("--set", "parallel." + setting)]


def losses(run):
    records = [json.loads(line) for line in (folder / run / "metrics.jsonl").read_text().splitlines()]
    return [(record["step"], record["losses"]["lm loss"]) for record in records if "losses" in record]


def train(run, ranks, settings, *words):
    result = megahost("--run-dir", run, "--nproc", str(ranks), *layout(settings), *words)
    assert result.returncode == 0, f"{run}: status {result.returncode}\n{result.stdout}{result.stderr}"
    return losses(run)


def compare(name, expected, found):
    assert [step for step, _ in expected] == [step for step, _ in found], f"{name}: steps {found}"
    worst = max(abs(a - b) / abs(a) for (_, a), (_, b) in zip(expected, found))
    print(f"{name}: {worst:.1e}")
    assert worst < 1e-5, f"{name}: losses differ by {worst:.1e}: {expected} {found}"


one = train("one", 1, "")
for ranks, settings in (
    (2, "tensor=2"),
    (2, "tensor=2,sequence=true"),
    (2, "data=2"),
    (4, "tensor=2,sequence=true,data=2"),
    (4, "tensor=4,data=1"),
    (2, "pipeline=2"),
    (2, "pipeline=2,schedule=gpipe"),
    (2, "pipeline=2,schedule=zb-h1"),
    (4, "tensor=2,pipeline=2"),
    (4, "pipeline=2,data=2,schedule=zb-h1"),
):
    compare(settings, one, train(settings, ranks, settings))


def checkpoint(run):
    """The tensors' files of a run's last checkpoint, byte for byte."""
    steps = sorted((folder / run / "checkpoints").glob("step-*"))
    return {path.name: path.read_bytes() for path in steps[-1].glob("*.safetensors")}


# Saves in the background change no bit of losses and checkpoints.
every_step = ("--set", "checkpoint.interval=1", "--set", "checkpoint.keep=2")
for ranks, settings in ((2, "data=2,zero=3"), (2, "pipeline=2"), (4, "tensor=2,data=2,zero=1")):
    blocking = train("blocking " + settings, ranks, settings, *every_step, "--set", "checkpoint.async=false")
    background = train("background " + settings, ranks, settings, *every_step)
    assert background == blocking, f"{settings}: {blocking} {background}"
    assert checkpoint("background " + settings) == checkpoint("blocking " + settings), settings
    log = (folder / ("background " + settings) / "log.txt").read_text()
    assert len(re.findall(r"then \d+ ms in the background", log)) == 6, log
    kept = sorted(path.name for path in (folder / ("background " + settings) / "checkpoints").glob("step-*"))
    assert kept == ["step-000000000005", "step-000000000006"], kept

# A recipe with fewer samples a step than ranks is refused with the key to change, and --scale makes it fit.
(folder / "few.toml").write_text('extends = "tiny.toml"\nbatch.global = 1\n')
few = [program, "run", "few.toml", "--nproc", "2", "--run-dir", "few"]
refused = subprocess.run(few, cwd=folder, capture_output=True, text=True)
assert refused.returncode == 2 and "batch.global 1 is not divisible by" in refused.stderr, refused
assert "data-parallel degree 2" in refused.stderr and "nearest: 2" in refused.stderr, refused
scaled = subprocess.run([*few, "--scale", "--set", "train.iters=2"], cwd=folder, capture_output=True, text=True)
assert scaled.returncode == 0 and [step for step, _ in losses("few")] == [1, 2], scaled

# Virtual stages need more layers; an evaluation passes them, too.
four = ("--set", "model.layers=4", "--set", "model.tied=true")
deep = train("deep", 1, "", *four)
compare("virtual stages", deep, train("virtual", 2, "pipeline=2,virtual_stages=2", *four))
compare("down and up", deep, train("vee", 2, "pipeline=2,virtual_stages=2,schedule=zb-v", *four))


def validation(run):
    records = [json.loads(line) for line in (folder / run / "metrics.jsonl").read_text().splitlines()]
    return [(record["step"], record["eval"]["lm loss"]) for record in records if "eval" in record]


assert len(validation("deep")) == 2, validation("deep")
compare("evaluation over virtual stages", validation("deep"), validation("virtual"))

# A run that changes its layout half way.
train("moving", 2, "tensor=2", "--set", "train.exit_iters=3")
train("moving", 4, "tensor=2,data=2", "--resume", "--set", "train.exit_iters=5")
compare("from tensor 2 over tensor 2 x data 2 to one rank", one, train("moving", 1, "", "--resume"))

# Stages of a pipeline hold other layers than those of another layout.
train("stages", 2, "pipeline=2", "--set", "train.exit_iters=2")
train("stages", 1, "", "--resume", "--set", "train.exit_iters=3")
train("stages", 4, "tensor=2,pipeline=2", "--resume", "--set", "train.exit_iters=5")
compare("pipeline 2 to one rank to tensor 2 x pipeline 2 to data 4 with ZeRO-1", one,
        train("stages", 4, "data=4,zero=1", "--resume"))

# State of whole matrices: on one of two tensor ranks, on one of two ranks under ZeRO-3, on the only one.
soap = ("--set", "optimizer.use=soap", "--set", "optimizer.precondition_frequency=2")
whole = train("soap", 1, "", *soap)
train("moving soap", 2, "tensor=2", *soap, "--set", "train.exit_iters=3")
train("moving soap", 2, "data=2,zero=3", *soap, "--resume", "--set", "train.exit_iters=5")
compare("SOAP from tensor 2 over ZeRO-3 to one rank", whole, train("moving soap", 1, "", *soap, "--resume"))

# A recipe that fails on every rank is refused once.
refused = megahost("--nproc", "2", "--set", "data.use=text", "--set", 'data.paths=["absent"]')
assert refused.returncode == 5, refused
assert refused.stderr.count("absent") == 1 and "rank" not in refused.stderr, refused.stderr
print("refused once:", refused.stderr.splitlines()[0][:80])


def children_of(process):
    return [int(pid) for task in pathlib.Path(f"/proc/{process}/task").iterdir()
            for pid in (task / "children").read_text().split()]


def long_run(name, settings="data=2", ranks=2, *words):
    run = subprocess.Popen(
        [its_own, "run", "tiny.toml", "--run-dir", name, "--nproc", str(ranks), *layout(settings), "--set",
         "train.iters=1000000", *words], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    metrics = folder / name / "metrics.jsonl"
    while not metrics.exists() or len(metrics.read_text().splitlines()) < 3:
        assert run.poll() is None, run.stderr.read()
        time.sleep(0.1)
    children = sorted(children_of(run.pid))
    assert len(children) == ranks, children
    return run, children


def listening(pids):
    """Addresses on which these processes wait for others, as /proc writes them."""
    sockets = {os.readlink(file) for pid in pids for file in pathlib.Path(f"/proc/{pid}/fd").iterdir() if file.is_symlink()}
    found = set()
    for table in "tcp", "tcp6":
        for line in pathlib.Path("/proc/net", table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                found.add(words[1].rsplit(":")[0])
    return found


# A rank that is killed takes the other one down, and is named. The ranks met on the loopback, and nowhere else.
run, children = long_run("killed")
loopback = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
waits = listening([run.pid, *children])
assert waits and waits <= loopback, waits
os.kill(children[1], signal.SIGKILL)
errors = run.communicate()[1]
assert run.returncode == 128 + signal.SIGKILL, (run.returncode, errors)
assert "rank 1 of 2 was ended by signal 9" in errors, errors
print("killed:", errors.splitlines()[0][:80])

# A rank that stops answering is not waited for longer than comm.timeout.
run, children = long_run("stopped", "data=2", 2, "--set", "comm.timeout=5")
os.kill(children[1], signal.SIGSTOP)
begin = time.time()
errors = run.communicate()[1]
assert run.returncode == 4, (run.returncode, errors)
assert "rank 0" in errors and "in collective" in errors, errors
assert "Where they are: rank 0 is at #" in errors and "rank 1 does not answer" in errors, errors
assert time.time() - begin < 60, "the other waited much longer than comm.timeout"
print(f"stopped: {time.time() - begin:.0f} s,", errors.splitlines()[0][:120])


def await_line(run, pattern):
    """Reads what a run says on standard error up to a line that matches."""
    lines = []
    for line in run.stderr:
        lines.append(line)
        if re.fullmatch(pattern, line.rstrip("\n")):
            return line
    raise AssertionError(f"no line matches {pattern}\n{''.join(lines)}")


# A rank that stops for a while: the run says whom the others wait for, again later, and that the rank is back.
host = re.escape(socket.gethostname())
place = r"#\d+ [a-z -]+(\d )?in \w+:[\d,]+ of \[[\d, ]*\] \w+ of step \d+"
for settings, ranks, late, times in (("data=2", 2, 1, 2), ("tensor=2", 2, 0, 1), ("pipeline=2,data=2", 4, 2, 1)):
    begin = time.time()
    run, children = long_run(f"paused {late}", settings, ranks, "--set", "comm.hang_after=2", "--set", "comm.timeout=60")
    os.kill(children[late], signal.SIGSTOP)
    where = f"( on {host})?"  # rank 0 takes the store with it, which knows the hosts
    for _ in range(times):
        line = await_line(run, rf"warning: no progress for \d+ s: waiting for rank {late}{where}, which does not answer "
                               r"\(its process is stopped, or its machine cannot be reached\)"
                               rf"(; ranks? [\d, and]+ on {host} waits? in {place})+; stacks and last collectives: "
                               r".*/hang; the run ends after comm.timeout, 60 s")
    os.kill(children[late], signal.SIGCONT)
    await_line(run, rf"warning: rank {late} is back after \d+ s")
    run.send_signal(signal.SIGTERM)
    assert run.wait() == 128 + signal.SIGTERM, run.stderr.read()
    print(f"paused: {time.time() - begin:.0f} s,", line.strip())

# So does an evaluation.
def long_evaluation(*words):
    run = subprocess.Popen([its_own, "eval", "tiny.toml", "--weights", "one", "--nproc", "2", *layout("data=2"), "--set",
                            "train.eval_iters=1000000", "--set", "comm.hang_after=2", *words], cwd=folder,
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    await_line(run, "warning: train.eval_iters .* times; --all reads each of them once")
    return run, sorted(children_of(run.pid))


run, children = long_evaluation()
os.kill(children[1], signal.SIGSTOP)
line = await_line(run, rf"warning: no progress for \d+ s: waiting for rank 1( on {host})?, which does not answer .*"
                       rf"; rank 0 on {host} waits in #\d+ .*; the run ends after comm.timeout, 60 s")
assert " step " not in line, line
os.kill(children[1], signal.SIGCONT)
await_line(run, r"warning: rank 1 is back after \d+ s")
print("an evaluation is paused:", line.strip())

# The launcher says so if no rank is left to say it.
for rank in children:
    os.kill(rank, signal.SIGSTOP)
line = await_line(run, r"warning: no progress: ranks 0 and 1 are stopped by a signal; "
                       rf"kill -CONT {children[0]} {children[1]} lets them go on")
for rank in children:
    os.kill(rank, signal.SIGCONT)
await_line(run, "warning: the stopped ranks go on")
print("all are stopped:", line.strip())
run.send_signal(signal.SIGTERM)
assert run.wait() == 128 + signal.SIGTERM, run.stderr.read()

# SIGTERM to the launcher: all ranks save and end.
run, children = long_run("ended")
run.send_signal(signal.SIGTERM)
errors = run.communicate()[1]
assert run.returncode == 128 + signal.SIGTERM, (run.returncode, errors)
assert any((folder / "ended" / "checkpoints").glob("step-*")), errors

# An environment that is there in part.
part = megahost(env={**os.environ, "RANK": "0", "TORCHELASTIC_RUN_ID": "x"})
assert part.returncode == 4 and "lacks WORLD_SIZE" in part.stderr, part
print(part.stderr.splitlines()[0])


def own_variables(rank, ranks, port):
    place = {"MEGAHOST_RANK": rank, "MEGAHOST_WORLD_SIZE": ranks, "MEGAHOST_LOCAL_RANK": rank,
             "MEGAHOST_LOCAL_WORLD_SIZE": ranks, "MEGAHOST_MASTER_ADDR": "127.0.0.1", "MEGAHOST_MASTER_PORT": port}
    return place, []


def torch_variables(rank, ranks, port):
    return {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}, []


def options(rank, ranks, port):
    return {}, ["--rank", str(rank), "--world-size", str(ranks), "--master", f"127.0.0.1:{port}"]


def plugin(rank, ranks, port):
    file = fixtures / "launches.so"
    return {"FIXTURE_RANK": rank, "FIXTURE_SIZE": ranks, "FIXTURE_PORT": port}, ["--plugin", str(file)]


def named_plugin(rank, ranks, port):
    file = fixtures / "launches.so"
    return {"NAMED_RANK": rank, "NAMED_SIZE": ranks, "NAMED_PORT": port}, [
        "--plugin", str(file), "--set", 'launcher={use="launches",prefix="NAMED"}']


def by_hand(*ranks, place=own_variables):
    """Ranks that were started without --nproc, each with its own words, None for one that is not; `place` tells them theirs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank, words in enumerate(ranks):
        if words is None:
            continue
        variables, more = place(rank, len(ranks), port)
        env = {**os.environ, **{name: str(value) for name, value in variables.items()}}
        started.append(subprocess.Popen([program, "run", "tiny.toml", *words, *more], cwd=folder, env=env,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
    return [(run.communicate()[1], run.returncode) for run in started]


# Whoever says a process's place, the ranks find one another and train like one.
usual = 0  # seconds that two ranks take from start to end, on this machine now
for place in (torch_variables, options, plugin, named_plugin):
    words = ["--run-dir", place.__name__, *layout("tensor=2")]
    begin = time.time()
    for errors, status in by_hand(words, words, place=place):
        assert status == 0, errors
    usual = max(usual, time.time() - begin)
    compare(place.__name__, one, losses(place.__name__))


# A rank that does not come is named, and so is an address where no rank listens, without LibTorch's stack.
words = [*layout("data=4"), "--set", "comm.timeout=4"]
for errors, status in by_hand(words, None, words, None):
    assert status == 4 and "ranks 1 and 3 did not come within 4 s" in errors and "frame #" not in errors, errors
(errors, status), = by_hand(None, words, None, None)
assert status == 4 and "rank 1 did not meet the other 3 at 127.0.0.1:" in errors and "frame #" not in errors, errors
print("not met:", errors.splitlines()[0][:120])

# A server of something else and a name that no machine has are told as what they are.
class Greets(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.recv(1)
        self.request.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")


with socketserver.TCPServer(("127.0.0.1", 0), Greets) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for master, what in ((f"127.0.0.1:{server.server_address[1]}", "what answers there is another program"),
                         ("absent.invalid:1", "no address is known of a host absent.invalid")):
        named = ["--rank", "1", "--world-size", "4", "--master", master]
        (errors, status), = by_hand(None, words, None, None, place=lambda rank, ranks, port: ({}, named))
        assert status == 4 and what in errors, errors
    server.shutdown()

# A rank that was given another recipe, or another layout, is named before any group exists.
for own, other, what in (
    ("optimizer.lr=1e-3", "optimizer.lr=2e-3", "lr = 0.002, where rank 0 has lr = 0.001"),
    ("parallel.data=2", "parallel.tensor=2", "rank 1 has another recipe than rank 0"),
):
    begin = time.time()
    patient = ["--set", "comm.timeout=600", "--set"]
    for errors, status in by_hand([*patient, own], [*patient, other]):
        assert status == 4 and "rank 1 has another recipe than rank 0" in errors and what in errors, errors
    assert time.time() - begin < max(4, 2 * usual), "the ranks waited for one another"
    print("another recipe:", errors.splitlines()[0][:120])

# A rank that fails alone takes the other one down, and its message is shown once.
begin = time.time()
alone = megahost("--nproc", "2", "--set", "parallel.data=2", "--set", "comm.timeout=600", "--set", "lr_schedule.use=fixed",
                 "--plugin", str(fixtures / "fails_alone.so"))
assert alone.returncode not in (0, 4) and alone.stderr.count("rank 1 has no rate") == 1, alone
assert time.time() - begin < 60, "the other rank was waited for"
print("fails alone:", alone.stderr.splitlines()[0][:120])

# Or other plugins.
words = ["--set", "lr_schedule.use=fixed", "--plugin"]
for errors, status in by_hand([*words, str(fixtures / "talks.so")], [*words, str(fixtures / "fails_alone.so")]):
    assert status == 4 and "rank 1 has another" in errors and "fails_alone" in errors, errors
print("other plugins:", errors.splitlines()[0][:120])

# A plugin's warning is printed by one rank.
talks = ["--plugin", str(fixtures / "talks.so"), "--set", "lr_schedule.use=fixed"]
told = [megahost("--run-dir", f"talk {ranks}", "--nproc", str(ranks), *talks, "--set", f"parallel.tensor={ranks}")
        for ranks in (1, 2)]
assert [run.returncode for run in told] == [0, 0], told
assert 0 < told[0].stderr.count("makes a rate") == told[1].stderr.count("makes a rate"), told

# The checking mode finds nothing in a sound layout.
compare("checking", one, train("checking", 2, "tensor=2,sequence=true", "--checking"))

# check of every layout, and of a model that is wrong under one of two.
check = subprocess.run(
    [program, "check", "--model", "llama", "--layouts", "all", "--nproc", "2", "--precision", "bf16", "--json"],
    cwd=folder, capture_output=True, text=True)
assert check.returncode == 0, check.stdout + check.stderr
found = json.loads(check.stdout)
assert len(found) > 12 and all(row["same"] for row in found), found
wrong = str(fixtures / "wrong_model.so")
check = subprocess.run([program, "check", "--model", "wrong", "--plugin", wrong, "--layouts", "tensor=2; data=2",
                        "--precision", "fp32"], cwd=folder, capture_output=True, text=True)
rows = {line.split()[0]: line for line in check.stdout.splitlines() if line.startswith("  ")}
assert check.returncode == 1 and " same " in rows["tensor=2"] and " DIFFERS " in rows["data=2"], check.stdout + check.stderr
print("check of a wrong model:", rows["data=2"].strip())

# check on processes: the numbers of one rank there, too.
check = subprocess.run(
    [program, "check", "tiny.toml", "--layouts", "tensor=2; data=2,context=2", "--precision", "fp32", "--processes", "--json"],
    cwd=folder, capture_output=True, text=True)
assert check.returncode == 0, check.stdout + check.stderr
assert [row["same"] for row in json.loads(check.stdout)] == [True, True], check.stdout
print("check --processes:", [row["precisions"]["fp32"]["worst"] for row in json.loads(check.stdout)])
