#!/usr/bin/env python3
"""On a terminal an evaluation shows a bar, how many samples it has read and when it will be done; in the end the bar is
gone. Elsewhere there is no bar."""

import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time

from on_terminal import OnTerminal

MEGAHOST = os.environ["MEGAHOST"]
TINY = os.environ["MEGAHOST_SOURCE"] + "/tests/cli/tiny.toml"
CLEAR = "\r\x1b[K"
BAR = re.compile(r"[█▏▎▍▌▋▊▉ ]+ +(\d+)%  ([\d,]+) of ([\d,]+) samples  loss \d+\.\d{4}  ETA (?:(\d+)h )?(?:(\d+)m ?)?(?:(\d+)s)?")


def number(text):
    return int((text or "0").replace(",", ""))


class Evaluation(OnTerminal):
    def __init__(self, words, folder):
        self.began = time.monotonic()
        super().__init__(words, cwd=folder, env={"NO_COLOR": "1"})

    def frames(self):
        """The texts written between two times that the line was cleared; the last may be there in part."""
        return self.written.decode(errors="ignore").replace("\r\n", "\n").split(CLEAR)


with tempfile.TemporaryDirectory() as folder:
    subprocess.run([MEGAHOST, "run", TINY, "--run-dir", "run"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    evaluate = [MEGAHOST, "eval", TINY, "--weights", "run", "--set", "data.samples=2000000"]

    whole = Evaluation([*evaluate, "--set", "train.eval_iters=40"], folder)
    assert whole.output()[1] == 0, whole.written
    before, *bars, results = whole.frames()
    assert before == "" and bars, whole.written
    last = 0
    for bar in bars:
        if bar == "":  # it is taken away
            continue
        found = BAR.fullmatch(bar)
        assert found, bar
        done, of = number(found[2]), number(found[3])
        assert of == 80 and last < done < of and number(found[1]) == round(100 * done / of), bar
        last = done
    assert last > 0 and re.fullmatch(r"lm loss .* validation split\nweights: run, step 5\n", results), results

    piped = subprocess.run([*evaluate, "--set", "train.eval_iters=40"], cwd=folder, capture_output=True, text=True, check=True)
    assert piped.stdout == results and piped.stderr == "", piped

    # So long that it never ends: the time left is what is left at the speed so far.
    endless = Evaluation([*evaluate, "--all", "--split", "train"], folder)
    seen, first = 0, None
    while first is None or time.monotonic() - first < 3 or len(endless.frames()) < 5:
        assert endless.read(), endless.written
        first = first or time.monotonic()
    now = time.monotonic()
    found = BAR.fullmatch(endless.frames()[-2])
    done, of = number(found[2]), number(found[3])
    left = 3600 * number(found[4]) + 60 * number(found[5]) + number(found[6])
    per_done = (of - done) / done
    print(found[0].strip(), "after", round(now - endless.began, 1), "s")
    assert of == 1800000 and (now - first) / 2 * per_done - 60 < left < (now - endless.began) * per_done + 60, found[0]
    endless.process.send_signal(signal.SIGTERM)
    endless.process.wait()
