"""The files that `megahost launch` writes for Kubernetes: each target with each of these instances."""

import os
import pathlib
import subprocess
import tempfile

import yaml

folder = pathlib.Path(tempfile.mkdtemp(prefix="megahost-launch-"))
(folder / "tiny.toml").write_text("""
name = "Tiny: a run"
precision = "bf16"
model = { use = "llama", layers = 2, hidden = 64, heads = 8, seq_length = 32 }
data = { use = "mock" }
batch = { global = 32, micro = 1 }
train = { iters = 10 }
checkpoint = { dir = "/fsx/runs/tiny" }
device = "cuda"
""")


def megahost(*words, status=0):
    done = subprocess.run([os.environ["MEGAHOST"], "launch", "tiny.toml", *map(str, words)], cwd=folder, text=True,
                          capture_output=True)
    assert done.returncode == status, done
    return done


KUBERNETES = ("pytorchjob", "hyperpod", "trainjob", "job", "jobset", "mpijob")
COMMON = ("--image", "registry/megahost:1", "--volume", "pvc:fsx-claim:/fsx")
# Instances, nodes, and further words: each with every target.
CASES = [
    ("p5.48xlarge", 2, ()),
    ("p6e-gb200.36xlarge", 4, ("--hours", 48, "--priority", "high", "--gang", "volcano", "--queue", "research")),
    ("g5.xlarge", 1, ("--volume", "s3:my-bucket:/data", "--volume", "host:/mnt/nvme:/local", "--port", "metrics=9400")),
    ("p4d.24xlarge,p4de.24xlarge", 4,
     ("--gang", "coscheduling", "--no-huge-pages", "--ofi-nccl", "1.5", "--namespace", "team", "--shared-memory", 64,
      "--volume", "fsx:scratch:/scratch", "--zone", "us-east-1a", "--restarts", 0)),
    ("p5en.48xlarge", 2, ("--gang", "kueue", "--queue", "research", "--env", "NCCL_DEBUG=INFO", "--efa", 8)),
]


def emitted(*words):
    """The documents of a job, whose files lie in folder / "out"."""
    megahost(*words, "-o", "out")
    return [one for one in yaml.safe_load_all((folder / "out/train.yaml").read_text()) if one]
