#!/usr/bin/env python3
"""A Lua recipe runs once for a command, whatever the command makes of it and however many ranks it starts: a module that it
requires is opened once. The files that the program checks before it loads anything are opened twice by the first process,
and never by the ranks."""

import ctypes
import json
import os
import struct
import subprocess
import sys
import tempfile

IN_OPEN, IN_CLOSE = 0x20, 0x10  # like events that follow one another would become one
MODULE = """
return { layers = 1, hidden = 16, heads = 2, seq_length = 16, vocab = 64 }
"""
RECIPE = """
local sizes = require("sizes")
return {
  name = "reads", precision = "fp32",
  model = merge({ use = "llama" }, sizes),
  data = { use = "mock" }, batch = { global = 4, micro = 1 }, train = { iters = 2 },
  optimizer = { lr = 1 / 3 },
}
"""


class Opens:
    """Counts how often files of a folder are opened."""

    def __init__(self, folder):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self.libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert self.fd >= 0 and self.libc.inotify_add_watch(self.fd, folder.encode(), IN_OPEN | IN_CLOSE) >= 0

    def take(self):
        counts = {}
        try:
            events = os.read(self.fd, 1 << 20)
        except BlockingIOError:
            return counts
        at = 0
        while at < len(events):
            _, mask, _, length = struct.unpack_from("iIII", events, at)
            name = events[at + 16:at + 16 + length].rstrip(b"\0").decode()
            counts[name] = counts.get(name, 0) + (1 if mask & IN_OPEN else 0)
            at += 16 + length
        return counts


def main():
    program = os.environ["MEGAHOST"]
    with tempfile.TemporaryDirectory() as folder:
        recipes = os.path.join(folder, "recipes")
        os.mkdir(recipes)
        for name, text in (("sizes.lua", MODULE), ("r.lua", RECIPE)):
            with open(os.path.join(recipes, name), "w") as file:
                file.write(text)
        opens = Opens(recipes)

        def command(*words, opened=1, status=0):
            done = subprocess.run([program, *words], cwd=folder, capture_output=True, text=True)
            counts = opens.take()
            said = f"megahost {' '.join(words)}: {counts}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
            assert done.returncode == status, said
            assert counts.get("sizes.lua") == opened, said
            assert counts["r.lua"] <= opened + 1, said
            return done.stdout

        recipe = "recipes/r.lua"
        command("run", recipe, "--run-dir", "one")
        command("run", recipe, "--run-dir", "two", "--nproc", "2", "--set", "parallel.data=2")
        command("run", recipe, "--run-dir", "two", "--nproc", "2", "--set", "parallel.data=2", "--resume", "--set", "train.iters=3")
        command("run", recipe, "--run-dir", "scaled", "--scale")
        command("eval", recipe, "--weights", "one", "--nproc", "2", "--set", "train.eval_iters=1")
        command("plan", recipe)
        # It does not fit, and says what would help.
        command("plan", recipe, "--set", "model.layers=60", "--set", "model.hidden=8192", "--on", "h100", status=1)
        command("check", recipe, "--layouts", "tensor=2", "--processes", "--precision", "float64")
        command("sweep", recipe, "--set", "optimizer.lr=0.1,0.2", "--list")
        # The learning rate of a run on two ranks, and of what it saved, is a third to the last bit.
        for run in ("one", "two"):
            with open(os.path.join(folder, run, "metrics.jsonl")) as file:
                steps = [json.loads(line) for line in file]
            rates = {step["lr"] for step in steps if "lr" in step}
            assert rates == {1 / 3}, rates


sys.exit(main())
