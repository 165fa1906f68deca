"""The machine code of the kernels for sm_80, 90a and 100: no register is spilled, none takes more than 64, and each source
loads and stores 16 bytes at a time.

Loads are read in PTX, of which the assembler makes one instruction each; it says itself what it spills.

usage: machine_code.py NVCC ROOT SOURCE...
"""

import pathlib
import re
import subprocess
import sys
import tempfile

MACHINES = ("80", "90a", "100")
REGISTERS = 64  # four blocks of 256 threads on a multiprocessor


def compiled(nvcc, root, source, folder, machine):
    """The output of the assembler, and the PTX that it read."""
    kept = folder / f"{source.stem}.{machine}"
    kept.mkdir()
    said = subprocess.run([nvcc, "-std=c++20", "-O3", "-fmad=false", f"-I{root}", str(source), f"-arch=sm_{machine}", "-Xptxas",
                           "-v", "-cubin", "-o", kept / "made.cubin", "--keep", "--keep-dir", kept],
                          check=True, capture_output=True, text=True).stderr
    return said, (kept / f"{source.stem}.ptx").read_text()


def faults(source, machine, said, ptx):
    where = f"{source.name} for sm_{machine}"
    for stored, loaded in re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", said):
        if int(stored) or int(loaded):
            yield f"{where}: {stored} bytes of registers are spilled"
    registers = [int(number) for number in re.findall(r"Used (\d+) registers", said)]
    if not registers:
        yield f"{where}: the assembler named no kernel"
    if max(registers, default=0) > REGISTERS:
        yield f"{where}: a kernel takes {max(registers)} registers, at most {REGISTERS} are allowed"
    for way, word in (("loads", "ld"), ("stores", "st")):
        if not re.search(rf"\b{word}\.global\.cg\.v4\.u32", ptx):
            yield f"{where}: nothing {way} 16 bytes at a time"


def main(nvcc, root, *sources):
    problems = []
    with tempfile.TemporaryDirectory() as folder:
        for source in map(pathlib.Path, sources):
            for machine in MACHINES:
                problems += faults(source, machine, *compiled(nvcc, root, source, pathlib.Path(folder), machine))
    return "\n".join(problems)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]) or 0)
