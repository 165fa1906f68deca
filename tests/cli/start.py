#!/usr/bin/env python3
"""--version, --help and a recipe's syntax errors answer within 50 ms and never load LibTorch."""

import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

LIMIT = 0.050  # seconds

program = os.environ["MEGAHOST"]
libraries = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
if "torch" in libraries or "libmegahost" in libraries:
    sys.exit(f"{program} is linked to what it should open only when needed:\n{libraries}")
broken = pathlib.Path(tempfile.mkdtemp(), "broken.lua")
broken.write_text("return { model = ")
for words, status in ((["--version"], 0), (["--help"], 0), (["run", broken], 2)):
    times = []
    for _ in range(15):
        start = time.perf_counter()
        result = subprocess.run([program, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
        assert result.returncode == status, f"{words} ended with status {result.returncode}"
    print(f"{words[0]}: {1000 * statistics.median(times):.1f} ms")
    if statistics.median(times) > LIMIT:
        sys.exit(f"{words[0]} takes more than {1000 * LIMIT:.0f} ms")
shutil.rmtree(broken.parent)
