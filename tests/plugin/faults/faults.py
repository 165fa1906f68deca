#!/usr/bin/env python3
"""A fault inside a plugin names the plugin, the call and the block: thrown, by a signal, in a thread; on one rank
and on two.

usage: faults.py FOLDER   with the plugin faults.so
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile

plugin = pathlib.Path(sys.argv[1]) / "faults.so"
folder = pathlib.Path(tempfile.mkdtemp(prefix="megahost-faults-"))
(folder / "notes.txt").write_text("some letters\n" * 200)
(folder / "tiny.toml").write_text(
    """
precision = "fp32"
[model]
use = "model"
layers = 2
hidden = 16
heads = 2
seq_length = 8
[data]
use = "zeros"
[tokenizer]
use = "letters"
[optimizer]
use = "descent"
lr = 0.01
[batch]
global = 4
micro = 1
[train]
iters = 3
eval_interval = 0
[comm]
timeout = 30
"""
)

SEGFAULT = -signal.SIGSEGV
MODEL = "the architecture of plugin org.example.faults"
FORWARD = f"{MODEL}, forward of block layers.1"
TEXT = ("--set", "data.use=text", "--set", 'data.paths=["notes.txt"]', "--set", "data.split=[100, 0, 0]")
TWO = ("--nproc", "2")
STAGES = (*TWO, "--set", "parallel.pipeline=2")
CORPUS, OPTIMIZER = ("the %s of plugin org.example.faults" % kind for kind in ("corpus", "optimizer"))
RECOMPUTED = ("--set", "recompute.use=full")
CHECK = ("check", "--layouts", "data=2", "--precision", "fp32")  # ranks are threads

# Fault, further words of the command (of `run` unless they name another), status, what is said.
CASES = [
    ("segfault forward", (), SEGFAULT, f"ended by signal 11 (Segmentation fault) in {FORWARD}\n"),
    ("segfault backward", (), SEGFAULT, f"signal 11 (Segmentation fault) in {MODEL}, backward of block layers.1\n"),
    ("segfault backward", RECOMPUTED, SEGFAULT, f"in {MODEL}, backward of block layers.1\n"),
    ("segfault update", (), SEGFAULT, "in the optimizer of plugin org.example.faults, update\n"),
    ("segfault sample", (), SEGFAULT, "in the corpus of plugin org.example.faults, sample\n"),
    ("segfault state", (), SEGFAULT, "in the optimizer of plugin org.example.faults, state\n"),
    ("segfault size", (), SEGFAULT, "in the corpus of plugin org.example.faults, size\n"),
    ("segfault layers", (), SEGFAULT, f"in {MODEL}, layers\n"),
    ("segfault encode", TEXT, SEGFAULT, "in the tokenizer of plugin org.example.faults, encode\n"),
    ("segfault layer", (), SEGFAULT, f"in {MODEL}, making of block layers.1\n"),
    ("segfault constructor", (), SEGFAULT, f"in {MODEL}, its constructor\n"),
    ("segfault registering", (), SEGFAULT, "in plugin org.example.faults, MH_PLUGIN\n"),
    ("abort forward", (), -signal.SIGABRT, f"ended by signal 6 (Aborted) in {FORWARD}\n"),
    ("exit forward", (), 1, f"ended by exit(0) in {FORWARD}\n"),
    ("exit forward", TWO, 1, f"ended by exit(0) in {FORWARD}"),
    ("terminate forward", (), -signal.SIGABRT,
     "in a thread of plugin org.example.faults, while another was in " + FORWARD +
     ": no handler for std::runtime_error: no one catches this\n"),
    ("together forward", (), SEGFAULT, f"in a thread of plugin org.example.faults, while another was in {FORWARD}\n"),
    ("segfault forward", CHECK, SEGFAULT, f"ended by signal 11 (Segmentation fault) in {FORWARD}\n"),
    ("terminate forward", CHECK, -signal.SIGABRT,
     f"in a thread of plugin org.example.faults, while another was in {MODEL}, forward of block layers."),  # of either rank
    ("thrown forward", (), 1, f"{MODEL} threw std::out_of_range in forward of block layers.1: basic_string::at"),
    ("thrown backward", (), 1, f"{MODEL} threw std::out_of_range in backward of block layers.1: basic_string::at"),
    ("thrown summary", (), 1, f"{CORPUS} threw std::out_of_range in summary: "),
    ("thrown arrays", (), 1, f"{CORPUS} threw std::out_of_range in arrays: "),
    ("thrown conditions", (), 1, f"{OPTIMIZER} threw std::out_of_range in conditions: "),
    ("segfault conditions", (), SEGFAULT, f"in {OPTIMIZER}, conditions\n"),
    ("thrown check", (), 1, f"{OPTIMIZER} threw std::out_of_range in a check of its fields: "),
    ("thrown constructor", (), 1, f"{MODEL} threw std::out_of_range in its constructor: "),
    ("no fault", ("--set", "lr_schedule.use=negative"), 6, "the lr_schedule negative gives the learning rate -1.000000 after 1 updates\n"),
    ("no fault", ("--set", "recompute.use=other_part"), 2, 'other_part names the part "mlpp", which no block of the model has\n'),
    ("an id", (), 5, "of the corpus holds the id 300 at `tokens`[3], but the model has ids 0 to 255\n"),
    ("thrown forward", STAGES, 1, f"{MODEL} threw std::out_of_range in forward of block layers.1: "),
    ("thrown update", (), 1, "the optimizer of plugin org.example.faults threw std::out_of_range in update: "),
    ("thrown state", (), 1, "the optimizer of plugin org.example.faults threw std::out_of_range in state: "),
    ("thrown size", (), 1, "the corpus of plugin org.example.faults threw std::out_of_range in size: "),
    ("thrown layers", (), 1, f"{MODEL} threw std::out_of_range in layers: "),
    ("thrown sample", (), 1, "the corpus of plugin org.example.faults threw std::out_of_range in sample: "),
    ("thrown encode", TEXT, 1, "the tokenizer of plugin org.example.faults threw std::out_of_range in encode: "),
    ("thrown layer", (), 1, f"{MODEL} threw std::out_of_range in making of block layers.1: "),
    ("silent forward", (), 1, "Silent in forward of block layers.1\n"),
    ("int forward", (), 1, f"{MODEL} threw something that is no std::exception in forward of block layers.1\n"),
    ("torch forward", (), 1, f"(in {FORWARD})\n"),
    ("segfault forward", TWO, 128 + 11, "rank"),  # "rank 1 of 2 was", or "all 2 ranks were"
    ("segfault forward", TWO, 128 + 11, f" ended by signal 11 (Segmentation fault) in {FORWARD}\n"),
    ("terminate forward", TWO, 128 + 6,
     f" ended by signal 6 (Aborted) in a thread of plugin org.example.faults, while another was in {FORWARD}"),
    ("thrown forward", TWO, 1, f"{MODEL} threw std::out_of_range in forward of block layers.1: "),
    ("terminate update", TWO, 128 + 6, " ended by signal 6 (Aborted) in a thread of plugin org.example.faults"),
    # The run is over when it shows what its model writes.
    *((f"{fault} decode", (), 0, f"{how} in the tokenizer of plugin org.example.faults, decode; the run is over and kept in ")
      for fault, how in (("segfault", "warning: ended by signal 11 (Segmentation fault)"), ("exit", "warning: ended by exit(0)"))),
    ("thrown decode", (), 0, ""),
    ("thrown update", TWO, 1, "the optimizer of plugin org.example.faults threw std::out_of_range in update: "),
]

wrong = []
for fault, words, status, said in CASES:
    command, *words = words if words[:1] == ("check",) else ("run", *words)
    result = subprocess.run(
        [os.environ["MEGAHOST"], command, "tiny.toml", "--plugin", plugin, *words], cwd=folder, capture_output=True,
        text=True, env=os.environ | {"MH_FAULT": fault, "OMP_NUM_THREADS": "1"})
    print(f"{fault} {' '.join(words)}: {result.stderr.splitlines()[0] if result.stderr else '(nothing)'}")
    errors = sum(line.startswith("error: ") for line in result.stderr.splitlines())
    if result.returncode != status or said not in result.stderr or errors != (status != 0):
        wrong.append(f"{fault} {words}: status {result.returncode}, expected {status} and {said!r} in\n{result.stderr}")
check = subprocess.run([os.environ["MEGAHOST"], *CHECK, "tiny.toml", "--plugin", plugin], cwd=folder, capture_output=True,
                       text=True, env=os.environ | {"MH_FAULT": "thrown forward"}).stdout
if "FAILED   on one rank, too: " not in check or not check.endswith("some layouts failed\n"):
    wrong.append(f"check of a model that throws on one rank, too, says\n{check}")
check = subprocess.run([os.environ["MEGAHOST"], "plugins", "check", plugin, "--include", "build-twice,seed-determinism"], cwd=folder,
                       capture_output=True, text=True, env=os.environ | {"MH_FAULT": "segfault forward"}).stdout
if check.count(f"ended: Segmentation fault (it printed: error: ended by signal 11 (Segmentation fault) in {MODEL}, forward of block ") != 2:
    wrong.append(f"plugins check of a model that crashes says\n{check}")
sys.exit("\n".join(wrong) or 0)
