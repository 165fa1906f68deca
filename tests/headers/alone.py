#!/usr/bin/env python3
"""Compiles each public header alone, as an author of a plugin would include it first.

usage: alone.py INCLUDE_FOLDER HEADERS -- COMPILER...

HEADERS are those of the SDK, separated by commas. What all headers with tensors read first, LibTorch's Tensor.h, is compiled
once for them; a header that reaches it by no include is compiled without it.
"""

import concurrent.futures
import pathlib
import re
import subprocess
import sys
import tempfile

TENSOR = "ATen/core/Tensor.h"


def reaches_tensors(header, seen=()):
    """Whether a header of the SDK includes Tensor.h, itself or by others of the SDK."""
    file = folder / header
    if header in seen or not file.exists():  # another library's, or one that is configured
        return header == TENSOR
    included = re.findall(r"^#include [<\"]([^>\"]+)[>\"]", file.read_text(), re.M)
    return any(reaches_tensors(name, (*seen, header)) for name in included)


def compile_alone(header, precompiled):
    first = ["-include", precompiled] if reaches_tensors("megahost/" + header) else []
    return subprocess.run([*compiler, "-fsyntax-only", *first, "-include", "megahost/" + header, "-x", "c++", "/dev/null"],
                          stderr=subprocess.PIPE, text=True)


cut = sys.argv.index("--")
folder, headers, compiler = pathlib.Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[cut + 1:]
with tempfile.TemporaryDirectory() as temporary:
    precompiled = pathlib.Path(temporary, "tensor.hpp")
    precompiled.write_text(f"#include <{TENSOR}>\n")
    subprocess.run([*compiler, "-x", "c++-header", precompiled, "-o", f"{precompiled}.gch"], check=True)
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        results = list(threads.map(lambda header: compile_alone(header, precompiled), headers))
for header, result in zip(headers, results):
    if result.returncode != 0:
        print(f"{header} does not compile alone:\n{result.stderr}")
sys.exit(any(result.returncode for result in results))
