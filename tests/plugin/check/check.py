#!/usr/bin/env python3
"""Each test of `megahost plugins check` has a plugin that fails it, and fails no other; a sound plugin passes all.

usage: check.py FOLDER   with the plugins faulty.so (its fault is chosen by MH_FAULT) and those of FILES
"""

import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys

# Faults of the file itself.
FILES = {
    "entry-only-export": "exports.so",
    "pin-present": "unpinned.so",
    "no-static-libstdcxx": "own_library.so",
    "no-rpath-to-torch": "other_torch_path.so",
    "no-static-torch-ops": "fixtures/static_operator.so",
}


def check(folder, fault):
    file = folder / FILES.get(fault, "faulty.so")
    environment = os.environ | {"MH_FAULT": fault, "OMP_NUM_THREADS": "1"}
    result = subprocess.run([os.environ["MEGAHOST"], "plugins", "check", file, "--json"], env=environment, text=True,
                            capture_output=True)
    if result.returncode not in (0, 1):
        sys.exit(f"{fault}: status {result.returncode}\n{result.stdout}{result.stderr}")
    tests = json.loads(result.stdout)["tests"]
    failed = {test["name"]: test["why"] for test in tests if test["result"] == "failed"}
    if (result.returncode == 1) != bool(failed):
        sys.exit(f"{fault}: status {result.returncode}, but failed are {failed}")
    return tests, failed


def main():
    folder = pathlib.Path(sys.argv[1])
    sound, failed = check(folder, "")
    wrong = [f"the sound plugin fails {failed}"] if failed else []
    left_out = [test["name"] for test in sound if test["result"] == "left out"]
    if left_out:
        wrong.append(f"the sound plugin, of every kind, leaves out {left_out}")
    faults = [test["name"] for test in sound]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for fault, (_, failed) in zip(faults, pool.map(lambda name: check(folder, name), faults)):
            why = failed.pop(fault, None)
            print(f"{fault}: {why}")
            if why is None or failed:
                wrong.append(f"the plugin with the fault {fault} " + ("passes it" if why is None else "") +
                             (f" fails {failed} too" if failed else ""))
    sys.exit("\n".join(wrong) or 0)


main()
