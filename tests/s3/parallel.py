#!/usr/bin/env python3
"""Commands that read checkpoints of a store have several requests in flight, also from one tensor to the next.
usage: parallel.py"""

import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

from store import Store, skip_without_moto

skip_without_moto()
CONNECTIONS = 8  # the default of storage.connections
RECIPE = """return {
  model = { use = "llama", layers = 1, hidden = 512, heads = 8, seq_length = 32 },
  batch = { global = 1, micro = 1 },
  data = { use = "mock" },
  train = { iters = 1, eval_interval = 0 },
  checkpoint = { dir = "s3://bucket/runs/a" },
}
"""


class Counting(Store):
    """Answers come late, so that requests that can be in flight together are."""

    def __init__(self):
        super().__init__()
        self.counting, self.active, self.most = threading.Lock(), 0, 0

    def forward(self, request):
        if request.method != "GET" or "range" not in request.headers:
            return super().forward(request)
        with self.counting:
            self.active += 1
            self.most = max(self.most, self.active)
        time.sleep(0.1)
        try:
            return super().forward(request)
        finally:
            with self.counting:
                self.active -= 1


def megahost(store, *words):
    store.most = 0
    ran = subprocess.run([os.environ["MEGAHOST"], *words], env=store.environment(), text=True, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT)
    if ran.returncode:
        sys.exit(f"{words} ended with {ran.returncode}: {ran.stdout}")
    return store.most


with Counting() as store, tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    pathlib.Path("r.lua").write_text(RECIPE)
    megahost(store, "run", "r.lua", "--run-dir", "run")
    for words in (
        ("checkpoint", "verify", "s3://bucket/runs/a"),
        ("run", "r.lua", "--run-dir", "run", "--resume"),
        ("checkpoint", "import", "s3://bucket/runs/a", "-o", "imported"),
    ):
        most = megahost(store, *words)
        print(f"{most} requests in flight: {' '.join(words)}", flush=True)
        # One range may always be being copied from, and one being asked for.
        if most < CONNECTIONS - 2:
            sys.exit("requests wait for each other")
        if most > CONNECTIONS:
            sys.exit("there are more requests in flight than storage.connections says")
