#!/usr/bin/env python3
"""Bytes per second from and to a RADOS gateway of this machine: curl with one connection and with eight ranges in parallel,
and in turn with them what reads and writes checkpoints and corpora. Next to them seconds of processor time for a GB, of the program
and of the gateway: those hold on a machine that does other work, too.

usage: speed.py [--rounds N] [--size MB] [--set KEY=VALUE]

A command's time is that on a large object, less that on a small one of the same kind: what is measured is bytes, not how long a
program takes to start. curl throws away what it reads, unless "to files" is said; files are in memory. Its uploads are signed
without a checksum of their bytes, and ours with one, unless --set storage.sign_payload=never. Nothing here fails by its time.
"""

import argparse
import os
import pathlib
import resource
import shutil
import statistics
import struct
import subprocess
import tempfile
import time

from store import KEY, SECRET, Gateway

parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--size", type=int, default=300)
parser.add_argument("--set", action="append", default=[])
options = parser.parse_args()

MEGAHOST = os.environ["MEGAHOST"]
PARALLEL = 8
SET = [word for setting in ("storage.use=s3", *options.set) for word in ("--set", setting)]
RECIPE = """return {
  model = { use = "llama", layers = LAYERS, hidden = 512, heads = 8, seq_length = 32 },
  batch = { global = 1, micro = 1 },
  data = { use = "mock" },
  train = { iters = 1, eval_interval = 0 },
  checkpoint = { async = false },
}
"""
LAYER = 12 * 512 * 512 * 12  # bytes of a layer's weights and of AdamW's two moments


class Seconds(tuple):
    """Seconds of a clock, seconds of processor time of the programs, and those of the gateway."""

    def __sub__(self, other):
        return Seconds(mine - others for mine, others in zip(self, other))


def counters():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Seconds((time.monotonic(), used.ru_utime + used.ru_stime, store.cpu_seconds()))


def seconds(*commands):
    """All at once."""
    start = counters()
    running = [subprocess.Popen([str(word) for word in command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
               for command in commands]
    for one, command in zip(running, commands):
        said = one.communicate()[0]
        assert one.returncode == 0, (command, said.decode(errors="replace"))
    return counters() - start


def curl(key, *words, to="/dev/null"):
    return ["curl", "-sSf", "-o", to, "--aws-sigv4", "aws:amz:us-east-1:s3", "-u", f"{KEY}:{SECRET}", "-H",
            "x-amz-content-sha256: UNSIGNED-PAYLOAD", *words, f"{store.url}/bucket/{key}"]


def ranges(key, size, to="/dev/null"):
    part = -(-size // PARALLEL)
    return [curl(key, "-H", f"Range: bytes={begin}-{min(begin + part, size) - 1}", to=to.replace("PART", str(begin)))
            for begin in range(0, size, part)]


def ranges_to_files(key, size):
    fresh("ranges")
    pathlib.Path("ranges").mkdir()
    return seconds(*ranges(key, size, "ranges/PART"))


def run(recipe, folder, *words):
    return [MEGAHOST, "run", recipe, "--run-dir", folder, *words, *SET]


def write_corpus(name, size):
    """A pair of documents of 1,000 tokens."""
    documents = size // 2000
    pathlib.Path(name + ".bin").write_bytes(b"".join(bytes((token, 0)) for token in os.urandom(1000)) * documents)
    index = struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, 8, documents, documents + 1)
    index += struct.pack("<i", 1000) * documents + b"".join(struct.pack("<q", 2000 * i) for i in range(documents))
    index += b"".join(struct.pack("<q", i) for i in range(documents + 1))
    pathlib.Path(name + ".idx").write_bytes(index)


def fresh(place):
    shutil.rmtree(place, ignore_errors=True)


def fetch_corpus(name):
    fresh("cache-" + name)
    return seconds([MEGAHOST, "data", "inspect", f"s3://bucket/{name}", "--set", f"data.cache=cache-{name}", *SET])


def load(name):
    fresh("copy-" + name)
    return seconds([MEGAHOST, "checkpoint", "import", f"s3://bucket/saved-{name}", "-o", "copy-" + name, *SET])


def put(name):
    for key in store.keys():
        if key.startswith("new-" + name):
            store.asks("DELETE", "/bucket/" + key)
    return seconds([MEGAHOST, "checkpoint", "import", "copy-" + name, "-o", f"s3://bucket/new-{name}", *SET])


def size_below(prefix):
    body = store.asks("GET", f"/bucket?list-type=2&prefix={prefix}")[1].decode()
    return sum(int(part.split("<")[0]) for part in body.split("<Size>")[1:])


with Gateway() as store, tempfile.TemporaryDirectory(dir="/dev/shm") as work:
    os.chdir(work)
    store.url = f"http://localhost:{store.port}"  # not through the proxy of Python
    environment = store.environment(AWS_ENDPOINT_URL=store.url)
    size = options.size * 1_000_000
    pathlib.Path("blob").write_bytes(os.urandom(size))
    for name, bytes_of_it in (("big", size), ("small", 1_000_000)):
        pathlib.Path(name + ".lua").write_text(RECIPE.replace("LAYERS", str(max(1, bytes_of_it // LAYER))))
        seconds(run(name + ".lua", "run-" + name, "--set", f"checkpoint.dir=s3://bucket/saved-{name}"))
        corpus = "corpus-" + name
        write_corpus(corpus, bytes_of_it)
        for ending in (".bin", ".idx"):
            seconds(curl(corpus + ending, "-T", corpus + ending))
    saved, tokens = (size_below(f"{what}-big") - size_below(f"{what}-small") for what in ("saved", "corpus"))

    def less_small(of):
        return lambda: of("big") - of("small")

    kinds = {
        "curl, one connection": (size, lambda: seconds(curl("blob"))),
        f"curl, {PARALLEL} ranges": (size, lambda: seconds(*ranges("blob", size))),
        "curl, to files": (size, lambda: ranges_to_files("blob", size)),
        "checkpoint verify": (saved, less_small(
            lambda name: seconds([MEGAHOST, "checkpoint", "verify", f"s3://bucket/saved-{name}", *SET]))),
        "checkpoint import": (saved, less_small(load)),
        "a corpus": (tokens, less_small(lambda name: fetch_corpus("corpus-" + name))),
        "curl put": (size, lambda: seconds(curl("blob", "-T", "blob"))),
        "checkpoint put": (saved, less_small(put)),
    }
    seconds(curl("blob", "-T", "blob"))
    found = {kind: [] for kind in kinds}
    for _ in range(options.rounds):
        for kind, (_, measure) in kinds.items():
            found[kind].append(measure())
            print(f"{kind}: {found[kind][-1][0]:.2f} s", flush=True)
    medians = {kind: [statistics.median(part) for part in zip(*times)] for kind, times in found.items()}
    speeds = {kind: kinds[kind][0] / 1e6 / clock for kind, (clock, _, _) in medians.items()}
    for kind, speed in speeds.items():
        against = "curl put" if kind in ("curl put", "checkpoint put") else f"curl, {PARALLEL} ranges"
        ours, gateways = (part / kinds[kind][0] * 1e9 for part in medians[kind][1:])
        print(f"{kind:22} {speed:7.0f} MB/s, {speed / speeds[against]:5.2f} of {against}; processor {ours:.2f} s/GB and the gateway's "
              f"{gateways:.2f}; {kinds[kind][0] / 1e6:.0f} MB, median of {options.rounds}")
