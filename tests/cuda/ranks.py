"""Two ranks, each with a GPU of its own, under NCCL in every strategy: a step runs, and each rank asks NCCL for collectives.

usage: ranks.py
"""

import pathlib
import tempfile

import empty_gpu
import small

# Settings of two ranks on top of the small recipe.
LAYOUTS = """
parallel.tensor=2
parallel.tensor=2 parallel.sequence=true
parallel.data=2 parallel.bucket_size=1000
parallel.data=2 parallel.reduce_dtype=bf16 parallel.overlap=false
parallel.data=2 parallel.zero=1 guards.compare_copies=1
parallel.data=2 parallel.zero=2
parallel.data=2 parallel.zero=3 precision=fp8
parallel.context=2
parallel.context=2 parallel.context_method=all_gather
parallel.context=2 parallel.context_method=all_to_all
parallel.pipeline=2
parallel.pipeline=2 parallel.schedule=gpipe
parallel.pipeline=2 parallel.schedule=interleaved-1f1b parallel.virtual_stages=2 model.layers=4
parallel.pipeline=2 parallel.schedule=zb-h1
parallel.pipeline=2 parallel.schedule=zb-v parallel.virtual_stages=2 model.layers=4
"""

# Mixtures: 32 tokens of a sample choose 2 of 8 experts. Their counts are made on the GPU, so they are planted: what ends
# at which row (9 numbers), and what each rank sends to each expert and gets from it (16).
ENDS, COUNTS = ",".join(str(8 * i) for i in range(9)), ",".join(["8"] * 16)
MIXTURES = """
parallel.data=2
parallel.expert=2
parallel.expert=2 parallel.expert_dispatch=all_gather
parallel.expert=2 parallel.zero=1
parallel.tensor=2 parallel.expert=2
parallel.tensor=2 parallel.expert_tensor=2
"""


MOE = {"model.use": "moe", "model.layers": 2, "model.hidden": 64, "model.heads": 4}  # another model has sizes of its own


def run(line, extra=(), plant=""):
    settings = dict(word.split("=", 1) for word in line.split()) | dict(extra)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        result = empty_gpu.call("run", small.write(folder), "--nproc", 2, "--run-dir", folder / "run",
                                *empty_gpu.sets(settings), gpus=2, plant=plant)
    if result.status != 0:
        return f"{line}: status {result.status}\n{result.out[-1500:]}{result.err[-3000:]}"
    ranks = [counts for counts in result.processes if counts.all("collective")]
    return "" if len(ranks) == 2 else f"{line}: {len(ranks)} processes used NCCL, expected 2\n{result.err}"


if __name__ == "__main__":
    empty_gpu.require()
    problems = [run(line) for line in LAYOUTS.strip().splitlines()]
    problems += [run(line, MOE, f"{ENDS};{COUNTS}") for line in MIXTURES.strip().splitlines()]
    raise SystemExit("\n".join(filter(None, problems)) or 0)
