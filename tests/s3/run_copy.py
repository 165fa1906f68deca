#!/usr/bin/env python3
"""run --copy-to: the copy of a run folder in a store is whole, in an order that a crash leaves readable, and a run goes on from it
on a machine that has nothing else."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile

from store import CANARIES, Store, skip_without_moto

skip_without_moto()
MEGAHOST = os.environ["MEGAHOST"]
RECIPE = """return {
  model = { use = "llama", layers = 1, hidden = 32, heads = 4, seq_length = 32 },
  batch = { global = 4, micro = 2 },
  data = { use = "mock" },
  checkpoint = { interval = 1 },
  train = { iters = 2 },
  log = { interval = 1 },
}
"""
COPY = ("--copy-to", "s3://bucket/copies/a")


def megahost(store, *words, status=0):
    ran = subprocess.run([MEGAHOST, *words], env=store.environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert not any(canary in ran.stdout for canary in CANARIES), ran.stdout
    assert ran.returncode == status, (words, ran.returncode, ran.stdout)
    return ran.stdout


def run(store, folder, *words, iters=2, **more):
    return megahost(store, "run", "r.lua", "--run-dir", folder, "--set", f"train.iters={iters}", *words, **more)


def losses(folder):
    return re.findall(r'"lm loss":([^,}]+)', pathlib.Path(folder, "metrics.jsonl").read_text())


def below(store, place):
    return sorted(key.removeprefix(place + "/") for key in store.keys() if key.startswith(place + "/"))


def files_of(folder):
    return sorted(str(file.relative_to(folder)) for file in pathlib.Path(folder).rglob("*")
                  if file.is_file() and file.name != ".lock" and "checkpoints" not in file.parts)


with Store() as store, tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    pathlib.Path("r.lua").write_text(RECIPE)
    run(store, "whole", iters=4)
    store.reset()
    said = run(store, "node", *COPY)
    assert re.search(r"copied to s3://bucket/copies/a: \d+ files, .*, with the checkpoint of step 2", said), said
    assert said.count("copied to") == 1
    there = below(store, "copies/a")
    assert [key for key in there if not key.startswith("checkpoints/")] == files_of("node"), there
    assert {key.split("/")[1] for key in there if key.startswith("checkpoints/")} == {"step-000000000002"}, there
    puts = [one.split("?")[0] for one in store.seen if one.startswith("PUT")]
    manifest = [i for i, one in enumerate(puts) if one.endswith("megahost.manifest.json")]
    tensors = [i for i, one in enumerate(puts) if "/checkpoints/" in one]
    assert manifest == [tensors[-1]] and puts[-1].endswith("/recipe.toml"), puts
    assert "0 differ" in megahost(store, "checkpoint", "diff", "node", "s3://bucket/copies/a", "--all")

    # Another machine, which has nothing else, gets the folder back, has the losses of a run that was never interrupted, and
    # brings the copy up to date.
    shutil.rmtree("node")
    words = ("run", "r.lua", "--run-dir", "node", *COPY, "--set", "train.iters=4")
    said = megahost(store, *words, "--resume=auto")
    assert "node is fetched from its copy s3://bucket/copies/a" in said and "resumed at step 2" in said, said
    assert losses("node") == losses("whole") and "with the checkpoint of step 4" in said, said
    shutil.rmtree("node")
    assert "resumed at step 4" in megahost(store, *words, "--resume"), "explicitly"
    assert losses("node") == losses("whole")

    said = run(store, "other", *COPY, status=5)
    assert "--copy-to s3://bucket/copies/a holds the copy of another run" in said and not os.path.exists("other"), said
    said = run(store, "other", "--copy-to", "somewhere", status=2)
    assert "--copy-to somewhere is no place in a store" in said, said

    # The same run goes on, on two ranks, and its copy with it.
    two = ("--copy-to", "s3://bucket/copies/two", "--nproc", "2", "--set", "parallel.data=2")
    assert run(store, "two", *two).count("copied to") == 1
    assert run(store, "two", *two, "--resume", iters=3).count("with the checkpoint of step 3") == 1
    steps = {key.split("/")[1] for key in below(store, "copies/two") if key.startswith("checkpoints/")}
    assert steps == {"step-000000000002", "step-000000000003"}, steps

    # Checkpoints that lie in a store are not copied; what else the run folder has is.
    run(store, "apart", "--set", "checkpoint.dir=s3://bucket/saves", "--copy-to", "s3://bucket/copies/apart")
    assert below(store, "copies/apart") == files_of("apart"), below(store, "copies/apart")

    # A store that refuses in the middle has no step without its tensors, and the run says so.
    store.fault = lambda request: (403, "AccessDenied") if request.method == "PUT" and ".json" in request.path else None
    said = run(store, "denied", "--copy-to", "s3://bucket/copies/denied", status=5)
    store.reset()
    assert "access is denied" in said and "recipe.toml" not in below(store, "copies/denied"), said
    assert not any("manifest" in key for key in below(store, "copies/denied")), below(store, "copies/denied")

    # A run that is told to end copies what it saved.
    process = subprocess.Popen([MEGAHOST, "run", "r.lua", "--run-dir", "ended", "--set", "train.iters=1000000", "--copy-to",
                                "s3://bucket/copies/ended"], env=store.environment(), text=True, stdout=subprocess.PIPE)
    for line in process.stdout:
        if "step " in line:
            process.send_signal(signal.SIGTERM)
            break
    said = process.stdout.read()
    assert process.wait() == 128 + signal.SIGTERM and "with the checkpoint of step" in said, said
    megahost(store, "checkpoint", "verify", "s3://bucket/copies/ended")
