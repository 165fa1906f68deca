"""Runs the program under test on GPUs that compute nothing, and reads what they were asked to do."""

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

import stand_ins

SOURCE, BUILD = pathlib.Path(os.environ["MEGAHOST_SOURCE"]), pathlib.Path(os.environ["MEGAHOST_BUILD"])
ENVIRONMENT = SOURCE / ".deps/cuda-env"
STAND_INS = BUILD / "tests/cuda/stand_ins"
RECORD = struct.Struct("240sQd")  # CountRecord of runtime/counts.hpp


class Counts(dict):
    """How often and how much by name ("kernel void at::...", "wait stream"), of one process."""

    @classmethod
    def read(cls, file):
        counts = cls()
        for name, count, amount in RECORD.iter_unpack(file.read_bytes()):
            text = name.split(b"\0")[0].decode()
            if not text:
                break
            counts[text] = (count, amount)
        return counts

    def minus(self, other):
        """The counts by which this exceeds the other: the cost of the one thing in which two runs differ."""
        more = {name: (count - other.get(name, (0, 0))[0], amount - other.get(name, (0, 0))[1])
                for name, count_and_amount in self.items() for count, amount in [count_and_amount]}
        less = {name: (-count, -amount) for name, (count, amount) in other.items() if name not in self}
        return Counts(more | less)

    def all(self, kind, holding=""):
        """How often, over all names of this kind that hold a text."""
        return sum(count for name, (count, _) in self.items() if name.startswith(kind + " ") and holding in name)

    def amount(self, kind, holding=""):
        return sum(amount for name, (_, amount) in self.items() if name.startswith(kind + " ") and holding in name)

    def names(self, kind):
        """By how often, the most frequent first."""
        return sorted(((count, name) for name, (count, _) in self.items() if name.startswith(kind + " ")), reverse=True)


class Result:
    def __init__(self, command, done, processes):
        self.command, self.status = " ".join(command), done.returncode
        self.out, self.err = done.stdout, done.stderr
        self.processes = processes  # the counts of those that used a GPU

    @property
    def counts(self):
        """The counts of the one process that used a GPU."""
        if len(self.processes) != 1:
            sys.exit(f"{self.command}: {len(self.processes)} processes used a GPU, expected 1\n{self.out}{self.err}")
        return self.processes[0]


def require():
    """Builds the stand-ins; without LibTorch's CUDA half the test is skipped."""
    if not (ENVIRONMENT / "pins").exists():
        print(f"no {ENVIRONMENT}: run ./megahost test cuda once")
        sys.exit(77)
    stand_ins.build(STAND_INS, ENVIRONMENT / "torch/lib", [
        SOURCE / ".deps/python/nvidia/cu13/include", ENVIRONMENT / "nvidia/cu13/include"])


def call(*arguments, gpus=1, plant="", timeout=120, **environment):
    """Runs the program; what it wrote, its exit status and what it asked of the GPUs. 124: it did not end."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "LD_LIBRARY_PATH": f"{ENVIRONMENT / 'torch/lib'}:{STAND_INS}",
            "EMPTY_CUDA_COUNTS": folder, "EMPTY_CUDA_GPUS": str(gpus), "EMPTY_CUDA_PLANT": plant,
            "TORCH_CUDNN_SDPA_DEPRIORITIZED": "1",  # cuDNN's graphs need a device
        }
        inherited = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        command = [os.environ["MEGAHOST"], *map(str, arguments)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout,
                                  env=inherited | settings | environment)
        except subprocess.TimeoutExpired as late:
            text = [(part or b"").decode() for part in (late.stdout, late.stderr)]
            done = subprocess.CompletedProcess(command, 124, *text)
        processes = [Counts.read(file) for file in sorted(pathlib.Path(folder).iterdir())]
        return Result(command, done, [counts for counts in processes if counts.all("kernel")])


def run(*arguments, **options):
    """Runs the program, which must succeed."""
    result = call(*arguments, **options)
    if result.status != 0:
        sys.exit(f"{result.command}: status {result.status}\n{result.out[-3000:]}{result.err[-3000:]}")
    return result


def sets(settings):
    """{"model.layers": 2} as command line options."""
    return [word for key, value in settings.items()
            for word in ("--set", f"{key}={value if isinstance(value, str) else json.dumps(value)}")]
