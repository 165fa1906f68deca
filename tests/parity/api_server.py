#!/usr/bin/env python3
"""A real API server is asked whether it takes what `megahost launch` writes for Kubernetes. It makes nothing of it (--dry-run=server)
and refuses fields that it does not know (--validate=strict). MEGAHOST_KUBECONFIG names the server's kubeconfig; without it the test is skipped.
Objects of an operator that the cluster has not are named, and not asked."""

import copy
import json
import os
import shutil
import subprocess
import sys

from launched_files import CASES, COMMON, KUBERNETES, emitted

SERVER = os.environ.get("MEGAHOST_KUBECONFIG")
if not SERVER:
    print("skipped: MEGAHOST_KUBECONFIG names no kubeconfig of an API server")
    sys.exit(77)
if shutil.which("kubectl") is None:
    sys.exit("MEGAHOST_KUBECONFIG is given, and PATH has no kubectl: install it")


def kubectl(*words, document=None):
    return subprocess.run(["kubectl", "--kubeconfig", SERVER, *words], input=document, capture_output=True, text=True)


def ask(document):
    """The server's sentence on an object; "" if it would take it."""
    done = kubectl("create", "--dry-run=server", "--validate=strict", "--filename=-", document=json.dumps(document))
    return "" if done.returncode == 0 else done.stderr.strip()


def absent(said):
    return "no matches for kind" in said or "ensure CRDs are installed first" in said


there = kubectl("version", "--output=json")
if there.returncode != 0:
    sys.exit(f"the API server of {SERVER} does not answer: {there.stderr.strip()}")
asked, missing, wrong = [], set(), []
for target in KUBERNETES:
    for instance, nodes, words in CASES:
        documents = emitted("--target", target, "--instance", instance, "--nodes", nodes, *COMMON, *words)
        for document in documents:
            # One that lies in another namespace than the server has is asked in the default one.
            document["metadata"].pop("namespace", None)
            kind = f"{document['apiVersion']} {document['kind']}"
            said = ask(document)
            if absent(said):
                missing.add(kind)
            elif said:
                wrong.append(f"{target} {instance}: {kind}: {said}")
            else:
                asked.append((kind, document))
assert not wrong, "\n".join(wrong)
assert any(kind == "batch/v1 Job" for kind, _ in asked), "the server took no Job"

# A field that no object has is refused.
for kind in sorted({kind for kind, _ in asked}):
    document = copy.deepcopy(next(one for other, one in asked if other == kind))
    document.setdefault("spec", {})["nnodes"] = 2
    said = ask(document)
    assert "nnodes" in said, f"{kind}: spec.nnodes is not refused: {said or 'it was taken'}"
print(f"{len(asked)} objects would be taken by {json.loads(there.stdout)['serverVersion']['gitVersion']}")
for kind in sorted(missing):
    print(f"not asked, as the cluster has no such kind: {kind}")
