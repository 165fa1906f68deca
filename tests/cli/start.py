#!/usr/bin/env python3
"""--version and --help answer within 50 ms and never load LibTorch."""

import os
import statistics
import subprocess
import sys
import time

LIMIT = 0.050  # seconds

program = os.environ["MEGAHOST"]
libraries = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
if "torch" in libraries or "libmegahost" in libraries:
    sys.exit(f"{program} is linked to what it should open only when needed:\n{libraries}")
for option in ("--version", "--help"):
    times = []
    for _ in range(15):
        start = time.perf_counter()
        subprocess.run([program, option], stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - start)
    print(f"{option}: {1000 * statistics.median(times):.1f} ms")
    if statistics.median(times) > LIMIT:
        sys.exit(f"{option} takes more than {1000 * LIMIT:.0f} ms")
