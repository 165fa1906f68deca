#!/usr/bin/env python3
"""Two ranks in network namespaces of their own, between which the link goes down: each names the other long before the transport
gives up. Skipped where namespaces may not be made."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import small_run

PROGRAM = os.environ["MEGAHOST"]
folder = pathlib.Path(tempfile.mkdtemp(prefix="megahost-link-"))
small_run.write_recipe(folder / "tiny.toml", "parallel = { data = 2 }", "train = { iters = 1000000 }",
                       "log = { interval = 1000 }", "comm = { timeout = 15, hang_after = 4 }")
NAMES = [f"mh{os.getpid()}{end}" for end in "ab"]


def ip(*words, check=True):
    return subprocess.run(["ip", *words], check=check, capture_output=True, text=True)


def start(rank):
    words = ["ip", "netns", "exec", NAMES[rank], PROGRAM, "run", "tiny.toml", "--run-dir", "run", "--rank", str(rank), "--world-size",
             "2", "--local-rank", "0", "--master", "10.77.0.1:29701"]
    output = open(folder / f"{rank}.txt", "w")
    return subprocess.Popen(words, cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "wire"}, stdout=output,
                            stderr=output)


def until(true, seconds):
    end = time.time() + seconds
    while not true():
        assert time.time() < end, [said(rank) for rank in range(2)]
        time.sleep(0.05)


def said(rank):
    return (folder / f"{rank}.txt").read_text()


def steps():
    metrics = folder / "run/metrics.jsonl"
    return len(metrics.read_text().splitlines()) if metrics.exists() else 0


if os.getuid() != 0 or not shutil.which("ip") or ip("netns", "add", NAMES[0], check=False).returncode != 0:
    print("this user may make no network namespaces (ip netns)")
    sys.exit(77)
ranks = []
try:
    ip("netns", "add", NAMES[1])
    ip("link", "add", "wire", "netns", NAMES[0], "type", "veth", "peer", "name", "wire", "netns", NAMES[1])
    for number, name in enumerate(NAMES, 1):
        ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "wire")
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "link", "set", "wire", "up")
    ranks = [start(rank) for rank in range(2)]
    until(lambda: steps() > 20, 60)
    time.sleep(3)  # until each rank's machine is known to the other
    ip("-n", NAMES[0], "link", "set", "wire", "down")
    begin = time.time()
    for rank in range(2):
        until(lambda: f"waiting for rank {1 - rank} on " in said(rank), 14)
        assert "its machine cannot be reached" in said(rank), said(rank)
        # The last collective is that of the gradients, or of what each step asks all ranks.
        assert re.search(r"all-reduce in (dp|world):0,1 of ", said(rank)), said(rank)
    print(f"named after {time.time() - begin:.1f} s, of which comm.hang_after is 4")
    assert [one.wait(60) for one in ranks] == [4, 4], [said(rank) for rank in range(2)]
finally:
    for one in ranks:
        one.kill()
    for name in NAMES:
        ip("netns", "del", name, check=False)
