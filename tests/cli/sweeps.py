#!/usr/bin/env python3
"""sweeps.py stopped: a sweep that is killed, or told to stop, goes on with the same command: what is done stays, what had
begun resumes. sweeps.py terminal: on a terminal its table is drawn over itself."""

import json
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

from on_terminal import OnTerminal

POINTS = ["--set", "optimizer.lr=1e-3,2e-3,3e-3", "--set", "train.iters=400", "--set", "checkpoint.interval=5", "--set",
          "log.tensorboard=false"]


def command(folder, *more):
    return [os.environ["MEGAHOST"], "sweep", os.environ["MEGAHOST_SOURCE"] + "/tests/cli/tiny.toml", *POINTS, "--run-dir",
            str(folder), "--json", *more]


def stopped_by(number, folder):
    """Starts a sweep, and stops it when its second point is under way."""
    sweep = subprocess.Popen(command(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not (list(folder.glob("*.json")) and len({file.parent for file in folder.glob("*/checkpoints/step*")}) > 1):
        assert sweep.poll() is None, sweep.communicate()
        time.sleep(0.02)
    sweep.send_signal(number)
    sweep.communicate()
    return sweep.returncode


def on_terminal(folder):
    """The output of a sweep to a terminal, and the lines that are there in the end."""
    words = [word for word in command(folder, "--jobs", "1") if word != "--json"]
    text, status = OnTerminal(words, env={"NO_COLOR": "1"}).output()
    assert status == 0, text
    screen = [""]
    for up, line in re.findall(r"\x1b\[(\d+)A\x1b\[J|([^\x1b\n]*\n)", text):
        screen = screen[:-int(up)] if up else screen + [line]
    return text, "".join(screen)


def stopped():
    for number, status in (signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 130):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder) / "sweep"
            assert stopped_by(number, folder) == status
            done = [file.stem for file in folder.glob("*.json")]
            times = {file: file.stat().st_mtime_ns for point in done for file in (folder / point).glob("metrics.jsonl")}
            assert len(done) < 3, done
            result = subprocess.run(command(folder, "--jobs", "2"), capture_output=True, text=True, check=True)
            points = json.loads(result.stdout)
            assert [point["state"] for point in points] == ["done"] * 3, points
            assert [point["steps"] for point in points] == [400] * 3, points
            assert all(file.stat().st_mtime_ns == then for file, then in times.items()), "what was done ran again"
            resumed = [log for log in folder.glob("*.log") if "resumed at step" in log.read_text()]
            assert len(resumed) == 1, resumed
            for point in points:
                steps = [json.loads(line)["step"] for line in open(point["run_folder"] + "/metrics.jsonl")]
                assert sorted(set(steps)) == list(range(1, 401)), point
            page = (folder / "sweep.html").read_text()
            assert page.count("<tr") == 4 and "last loss over optimizer.lr" in page, page[:200]
            # Learning rates are compared by their ratios.
            chart = page.split("last loss over optimizer.lr", 1)[1].split("</svg>", 1)[0]
            at = sorted(float(x) for x in re.findall(r'<circle cx="([\d.]+)"', chart))
            assert len(at) == 3 and abs((at[1] - at[0]) / (at[2] - at[0]) - math.log(2) / math.log(3)) < 0.02, at
            assert len((folder / "sweep.csv").read_text().splitlines()) == 4


def terminal():
    with tempfile.TemporaryDirectory() as folder:
        written, left = on_terminal(pathlib.Path(folder) / "sweep")
        frames = re.split(r"\x1b\[\d+A\x1b\[J", written)
        states = [re.findall(r"\b(waiting|running|done)\b", frame) for frame in frames]
        assert ["running", "waiting", "waiting"] in [sorted(one) for one in states], states
        assert ["done", "running", "waiting"] in [sorted(one) for one in states], states
        assert left.count("ID ") == 1 and re.findall(r"\b(waiting|running|done)\b *400/400", left) == ["done"] * 3, left


{"stopped": stopped, "terminal": terminal}[sys.argv[1]]()
