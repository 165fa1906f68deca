#!/usr/bin/env python3
"""Runs that save in an object store: the same bits as on a disk, under faults and after being killed at any request; what
is left behind is found and removed.
usage: runs.py same|kills|orphans|refused [COUNT] [--gateway]"""

import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading

from store import CANARIES, KEY, REGION, Gateway, Store, random_faults, skip_without_moto

if "--gateway" not in sys.argv:
    skip_without_moto()
MEGAHOST = os.environ["MEGAHOST"]
RECIPE = """return {
  model = { use = "llama", layers = 1, hidden = 32, heads = 4, seq_length = 32 },
  batch = { global = 4, micro = 4 },
  data = { use = "mock" },
  checkpoint = { interval = 2, keep = 2 },
  train = { iters = 4 },
  log = { interval = 1 },
  storage = { use = "s3", stall = 1 },
}
"""


class Failed(Exception):
    pass


def check(condition, *words):
    if not condition:
        raise Failed(" ".join(map(str, words)))


def megahost(store, *words, status=0, environment=None):
    ran = subprocess.run([MEGAHOST, *map(str, words)], env=environment or store.environment(), text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    for canary in CANARIES:
        check(canary not in ran.stdout, "a secret was printed:", ran.stdout)
    check(status is None or ran.returncode == status, words, "ended with", ran.returncode, ran.stdout)
    return ran.stdout


def train(store, place, run, *words, iters=4, **more):
    return megahost(store, "run", "r.lua", "--set", f"checkpoint.dir={place}", "--run-dir", run, "--set", f"train.iters={iters}",
                    *words, **more)


def no_secrets_below(folder):
    for file in pathlib.Path(folder).rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            check(not any(canary.encode() in data for canary in CANARIES), file, "holds a secret")


def losses(run):
    found = re.findall(r'"lm loss":([^,}]+)', pathlib.Path(run, "metrics.jsonl").read_text())
    check(found, run, "has no losses")
    return found


def same(store):
    """Saved, resumed, read by every command and by another number of ranks, with a tenth of all requests failing."""
    megahost(store, "run", "r.lua", "--run-dir", "disk", "--set", "train.iters=6")
    store.fault = random_faults(0.1, seed=2)
    train(store, "s3://bucket/runs/a", "run")
    said = train(store, "s3://bucket/runs/a", "run", "--resume", iters=6)
    check("resumed at step 4" in said, said)
    check(losses("run") == losses("disk"), losses("run"), losses("disk"))
    said = megahost(store, "checkpoint", "diff", "disk", "s3://bucket/runs/a", "--all")
    check("0 differ" in said, said)
    check(re.findall(r"(?m)^ *(\d+)", megahost(store, "checkpoint", "ls", "s3://bucket/runs/a")), "nothing is listed")
    megahost(store, "checkpoint", "verify", "s3://bucket/runs/a")
    megahost(store, "eval", "r.lua", "--weights", "s3://bucket/runs/a", "--set", "train.eval_iters=1")
    megahost(store, "checkpoint", "export", "s3://bucket/runs/a", "--to", "dcp", "-o", "s3://bucket/exported")
    megahost(store, "checkpoint", "import", "s3://bucket/exported", "-o", "imported")
    said = megahost(store, "checkpoint", "diff", "disk", "imported", "--all")
    check("0 differ" in said, said)
    # Two ranks write their shards, and one reads them.
    train(store, "s3://bucket/runs/two", "two", "--nproc", "2", "--set", "parallel.data=2", "--set", "batch.micro=2",
          "--set", "parallel.zero=1", iters=2)
    train(store, "s3://bucket/runs/two", "two", "--resume", iters=3)
    said = train(store, "s3://bucket/runs/a", "another", status=5)
    check("s3://bucket/runs/a holds the checkpoints of another run" in said, said)
    no_secrets_below(".")
    print(f"{store.count} requests, {store.refused or 'none refused'}")


def kill_at(store, number, before, words):
    """Starts a run that is killed at a request, before it is done or after."""
    process = subprocess.Popen(words, env=store.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    lock = threading.Lock()

    def kill(request):
        with lock:
            if request.number == number:
                process.send_signal(signal.SIGKILL)
                process.wait()
            return "lost" if request.number >= number else None

    if before:
        # A request of a process that is gone is not done.
        store.fault = lambda request: (kill(request) and (503, "SlowDown")) or None
    else:
        store.after = kill
    process.wait()
    requests, ended = store.count, process.returncode
    store.reset()
    return requests, ended


def kills(store, count):
    megahost(store, "run", "r.lua", "--run-dir", "disk", "--set", "train.iters=6")
    dice = random.Random(3)
    train(store, "s3://bucket/whole", "whole")
    most = store.count
    store.reset()
    for i in range(count):
        place, run = f"s3://bucket/kills/{i}", f"run-{i}"
        number, before = dice.randrange(1, most), dice.random() < 0.5
        words = [MEGAHOST, "run", "r.lua", "--set", f"checkpoint.dir={place}", "--run-dir", run]
        kill_at(store, number, before, words)
        kill_at(store, dice.randrange(1, most), dice.random() < 0.5, [*words, "--resume=auto"])
        said = train(store, place, run, "--resume=auto", iters=6)
        for line in said.splitlines():
            check("damaged" not in line, said)
        said = megahost(store, "checkpoint", "diff", "disk", place, "--all")
        check("0 differ" in said, i, number, said)
        check(not store.uploads() and not store.refused, store.uploads(), store.refused)
        store.reset()
    print(f"{2 * count} kills at one of {most} requests")


def orphans(store):
    """Parts of an upload whose process was killed."""
    words = ["run", "r.lua", "--set", "checkpoint.dir=s3://bucket/big", "--run-dir", "run", "--set", "train.iters=2",
             "--set", "storage.part_size=5", "--set", "tokenizer.use=null", "--set", "tokenizer.vocab=32000", "--set", "model.hidden=64"]
    part = threading.Event()
    process = subprocess.Popen([MEGAHOST, *words], env=store.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(request):
        if "partNumber=2" in request.query:
            part.set()
            process.kill()

    store.after = kill
    process.wait()
    check(part.is_set(), "nothing was written in parts:", store.seen)
    store.reset()
    check(store.uploads(), "there are no orphaned parts")
    found = len(store.uploads())
    said = megahost(store, "checkpoint", "gc", "s3://bucket/big", "--dry-run")
    check(said.count(": its upload never finished") == found and len(store.uploads()) == found, said, store.uploads())
    check(f"{found} to remove" in said and f"unfinished uploads among them: {found}" in said, said)
    sizes = re.findall(r"would remove s3://bucket/big/checkpoints/\S+, (\d.*): its upload", said)
    check(any(float(size.split()[0]) >= 5 and size.endswith(" MB") for size in sizes), "no part of 5 MiB is told:", said)
    removed = megahost(store, "checkpoint", "gc", "s3://bucket/big")
    check(removed == said.replace("would remove", "removed").replace("to remove", "removed"), said, removed)
    check(not store.uploads(), "orphaned parts stay:", store.uploads())
    megahost(store, "checkpoint", "gc", "s3://bucket/big", status=5)  # it holds no checkpoint
    megahost(store, *words, "--resume=auto")
    megahost(store, "checkpoint", "verify", "s3://bucket/big")
    check(any("partNumber=2" in one for one in store.seen) and not store.refused, store.refused)
    said = megahost(store, "checkpoint", "gc", "s3://bucket/big", "--set", "storage.connections=1")
    check("0 removed" in said, said)
    store.reset()
    export = ["checkpoint", "export", "s3://bucket/big", "--to", "dcp", "-o", "s3://bucket/exported", "--set", "storage.use=s3",
              "--set", "storage.part_size=5"]
    part.clear()
    process = subprocess.Popen([MEGAHOST, *export], env=store.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    store.after = lambda request: kill(request) if "/exported/" in request.path else None
    process.wait()
    store.reset()
    check(part.is_set() and store.uploads(), "the export left no parts")
    said = megahost(store, "checkpoint", "gc", "s3://bucket/exported")
    check("unfinished uploads among them: " in said and not store.uploads(), "parts of an export stay:", store.uploads(), said)
    megahost(store, "checkpoint", "gc", "s3://bucket/exported", status=5)  # it holds no checkpoint


def refused(store):
    """A key that is too long is refused before the first step, and a step without its manifest is said not to be complete."""
    train(store, "s3://bucket/" + "k" * 970, "long", status=5)
    check(not any(method in seen.split() for seen in store.seen for method in ("PUT", "POST")), store.seen)
    train(store, "s3://bucket/half", "half")
    step = "s3://bucket/half/checkpoints/step-000000000004"
    manifest, = (key for key in store.keys() if key.startswith(step[12:]) and key.endswith("manifest.json"))
    owner = f"AWS4-HMAC-SHA256 Credential={KEY}/20300101/{REGION}/s3/aws4_request"
    store.asks("DELETE", "/bucket/" + manifest, headers={"authorization": owner})
    for words in (("checkpoint", "verify", step), ("eval", "r.lua", "--weights", step)):
        said = megahost(store, *words, status=5)
        check(f"{step} is a checkpoint that is not complete" in said, said)


with (Gateway if "--gateway" in sys.argv else Store)() as store, tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    pathlib.Path("r.lua").write_text(RECIPE)
    try:
        {"same": same, "kills": lambda one: kills(one, int(sys.argv[2])), "orphans": orphans, "refused": refused}[sys.argv[1]](store)
    except Failed as failed:
        sys.exit(f"{failed}\nlast requests: {store.seen[-20:]}\nrefused: {store.refused}")
