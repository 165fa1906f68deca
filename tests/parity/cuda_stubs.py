#!/usr/bin/env python3
"""Empty stand-ins for the CUDA libraries that a Python torch names but never calls on a CPU.

usage: cuda_stubs.py TORCH_LIB_FOLDER

They save 3 GB of downloads. Each holds the functions that torch's libraries ask it for, and each of them traps.
"""

import collections
import pathlib
import re
import subprocess
import sys

folder = pathlib.Path(sys.argv[1])
needed = set()
functions = collections.defaultdict(set)
for name in ("libtorch_cuda.so", "libtorch_cuda_linalg.so", "libtorch_nvshmem.so", "libtorch_python.so"):
    dynamic = subprocess.check_output(["readelf", "-dW", folder / name], text=True)
    needed |= set(re.findall(r"NEEDED.*\[(lib(?:cu|nccl|nvshmem).*)\]", dynamic))
    undefined = subprocess.check_output(["nm", "-D", "--undefined-only", folder / name], text=True)
    for function, version in re.findall(r" U ((?:cu|nccl|nvshmem)\w+)(?:@(\S+))?", undefined):
        functions[version].add(function)

for library in needed - {"libcudart.so.13"}:
    version = {"libnccl.so.2": "", "libnvshmem_host.so.3": "NVSHMEM"}.get(library, library)
    source = "".join(f"void {f}(void) {{ __builtin_trap(); }}\n" for f in sorted(functions[version]))
    script = folder / "stub.map"
    script.write_text(f"{version} {{ global: *; }};" if version else "{ global: *; };")
    subprocess.run(
        ["g++", "-shared", "-fPIC", f"-Wl,-soname,{library}", f"-Wl,--version-script={script}",
         "-o", folder / library, "-x", "c", "-w", "-fno-builtin", "-"],
        input=source, text=True, check=True)
    script.unlink()
