"""`megahost check` with ranks as threads of one GPU: every layout ends.

Autograd has one thread per GPU. A rank whose backward pass waits there for another rank's would wait forever if that one
were queued behind it.

usage: layouts.py
"""

import pathlib
import tempfile

import empty_gpu
import small

LAYOUTS = "tensor=2; tensor=2,sequence=true; pipeline=2; context=2; data=2; data=2,zero=3; tensor=2,pipeline=2"

if __name__ == "__main__":
    empty_gpu.require()
    with tempfile.TemporaryDirectory() as folder:
        result = empty_gpu.call("check", small.write(pathlib.Path(folder)), "--set", "device=cuda", "--precision", "bf16",
                                "--layouts", LAYOUTS, timeout=100)
    if result.status != 0:
        raise SystemExit(f"{result.command}: status {result.status}\n{result.out}{result.err}")
    if result.counts.all("gemm") == 0:
        raise SystemExit(f"{result.command}: nothing was multiplied on the GPU")
