#!/usr/bin/env python3
"""bert_tiny, t5_tiny, hybrid_tiny and ict_tiny learn on the quickstart's text what a person can see: their metrics have a floor."""

import json
import os
import re
import subprocess
import tempfile

PROGRAM, SOURCE = os.environ["MEGAHOST"], os.environ["MEGAHOST_SOURCE"]


def learned(name):
    """The losses of an evaluation of a whole run."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = f"{SOURCE}/recipes/{name}.lua"
        for words in (["run", recipe, "--run-dir", folder + "/run"], ["eval", recipe, "--weights", folder + "/run"]):
            result = subprocess.run([PROGRAM, *words], cwd=folder, capture_output=True, text=True)
            print(result.stdout[-3000:], result.stderr[-1000:], flush=True)
            assert result.returncode == 0, result.returncode
        return {key: float(value) for key, value in re.findall(r"^([\w-]+ \w+) ([\d.]+)", result.stdout, re.MULTILINE)}


bert = learned("bert_tiny")
assert bert["lm accuracy"] > 0.25 and bert["sop accuracy"] > 0.6, bert
t5 = learned("t5_tiny")
assert t5["lm loss"] < 1.2, t5
hybrid = learned("hybrid_tiny")
assert hybrid["lm loss"] < 1.6, hybrid

with tempfile.TemporaryDirectory() as folder:
    for words in (["run", f"{SOURCE}/recipes/ict_tiny.lua", "--run-dir", folder + "/run"], ["embed", folder + "/run", "--json"]):
        result = subprocess.run([PROGRAM, *words], cwd=folder, capture_output=True, text=True)
        print(result.stdout[-3000:], result.stderr[-1000:], flush=True)
        assert result.returncode == 0, result.returncode
    recall = json.loads(result.stdout)["recall"]
    assert recall["1"] > 0.12 and recall["20"] > 0.35, recall
