#!/usr/bin/env python3
"""--version, --help and a recipe's syntax errors answer within 50 ms and never load LibTorch.

Other programs may run meanwhile: the processor's time of the usual call counts, and the clock's of the quickest."""

import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

LIMIT = 0.050  # seconds


def processor_time():
    """Seconds that finished children have computed, for themselves and in the system."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


program = os.environ["MEGAHOST"]
libraries = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
if "torch" in libraries or "libmegahost" in libraries:
    sys.exit(f"{program} is linked to what it should open only when needed:\n{libraries}")
broken = pathlib.Path(tempfile.mkdtemp(), "broken.lua")
broken.write_text("return { model = ")
for words, status in ((["--version"], 0), (["--help"], 0), (["run", broken], 2)):
    taken, computed = [], []
    for _ in range(15):
        start, before = time.perf_counter(), processor_time()
        result = subprocess.run([program, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        taken.append(time.perf_counter() - start)
        computed.append(processor_time() - before)
        assert result.returncode == status, f"{words} ended with status {result.returncode}"
    print(f"{words[0]}: {1000 * min(taken):.1f} ms, {1000 * statistics.median(computed):.1f} ms of a processor")
    if max(min(taken), statistics.median(computed)) > LIMIT:
        sys.exit(f"{words[0]} takes more than {1000 * LIMIT:.0f} ms")
shutil.rmtree(broken.parent)
