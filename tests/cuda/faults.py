"""A fault of a GPU is reported in a sentence of ours, and the program ends by itself.

usage: faults.py
"""

import pathlib
import tempfile

import empty_gpu
import small

problems = []


def expect(what, result, status, *texts):
    said = result.out + result.err
    missing = [text for text in texts if text not in said]
    if result.status != status or missing:
        problems.append(f"{what}: status {result.status}, expected {status}; not said: {missing}\n{said[-4000:]}")


def run(*words, ranks=1, gpus=1, **environment):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        several = ["--nproc", ranks, "--set", f"parallel.data={ranks}"] if ranks > 1 else []
        return empty_gpu.call("run", small.write(folder), "--run-dir", folder / "run", *several, *words, gpus=gpus,
                              timeout=60, **environment)


if __name__ == "__main__":
    empty_gpu.require()
    expect("no GPU", run(gpus=0), 2, "needs a GPU, and LibTorch sees none")
    expect("two ranks on one GPU", run(ranks=2), 2, "ranks 0 and 1 would compute on one device, GPU-4700")
    expect("out of memory", run("--set", "model.hidden=1024", "--set", "batch.micro=4096", "--set", "batch.global=4096",
                                "--set", "model.seq_length=4096"), 3, "out of memory")
    # LibTorch's watchdog ends the process; within seconds, and what it says of NCCL comes out.
    expect("a GPU that falls off", run("--set", "train.iters=1000000", ranks=2, gpus=2, EMPTY_CUDA_NCCL_FAILS="4"), 134,
           "was ended by signal 6", "NCCL error")
    raise SystemExit("\n".join(problems) or 0)
