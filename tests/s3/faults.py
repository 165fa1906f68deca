#!/usr/bin/env python3
"""The contract of a storage, test_s3_store, in a store without faults and under each kind of them: the same.
usage: faults.py TEST_S3_STORE [--long]"""

import subprocess
import sys

from store import Store, random_faults, skip_without_moto

skip_without_moto()


def first(tries, *kinds):
    """The first tries of each request fail, with one kind after the other."""
    failed = {}

    def fault(request):
        failed[str(request)] = failed.get(str(request), -1) + 1
        return kinds[failed[str(request)] % len(kinds)] if failed[str(request)] < tries else None

    return fault


def check(store, name, **more):
    environment = store.environment(MEGAHOST_S3=f"s3://bucket/{name}", **more)
    ran = subprocess.run([sys.argv[1]], env=environment, capture_output=True, text=True)
    if ran.returncode or store.refused:
        sys.exit(f"{name}: {ran.stdout}{ran.stderr}\nrefused: {store.refused}")
    print(f"{name}: {store.count} requests", flush=True)
    store.reset()


with Store() as store:
    check(store, "no faults")
    store.page = 2
    check(store, "pages of two")
    for kind in ("cut", "lost"):
        store.fault = first(1, kind)
        check(store, kind)
    if "--long" in sys.argv:
        for kind in ("503", "500", "expired", "cut", "lost", "slow"):
            store.fault = first(3, kind)
            check(store, kind + " three times")
    store.fault = random_faults(0.2, seed=1)
    check(store, "all kinds")
