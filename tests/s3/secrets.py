#!/usr/bin/env python3
"""Runs that save in a store, go on and fail there, with the credentials of each source: no secret is in what they print, in the
recipe, the log, the metrics or any other file of the run. Through msc:// too, with the same bits as on a disk."""

import http.server
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading

from given import Given, aws_folder
from store import CANARIES, KEY, SECRET, TOKEN, Store, skip_without_moto

skip_without_moto()
MEGAHOST = os.environ["MEGAHOST"]
RECIPE = """return {
  model = { use = "llama", layers = 1, hidden = 32, heads = 4, seq_length = 32 },
  batch = { global = 4, micro = 4 },
  data = { use = "mock" },
  checkpoint = { interval = 1 },
  train = { iters = 2 },
  log = { interval = 1 },
}
"""
STATIC = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_SESSION_TOKEN": ""}


def megahost(store, *words, status=0, **environment):
    ran = subprocess.run([MEGAHOST, *words], env=store.environment(**environment), text=True, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT)
    assert ran.returncode == status, (words, ran.returncode, ran.stdout)
    assert not any(canary in ran.stdout for canary in CANARIES), ran.stdout
    return ran.stdout


def losses(run):
    return re.findall(r'"lm loss":([^,}]+)', pathlib.Path(run, "metrics.jsonl").read_text())


def run_and_fail(store, name, place, **environment):
    """A run that saves, one that goes on, one whose saves the store denies, and one that it does not know."""
    words = ("run", "r.lua", "--run-dir", name, "--set", f"checkpoint.dir={place}/{name}")
    megahost(store, *words, **environment)
    megahost(store, *words, "--resume", "--set", "train.iters=4", **environment)
    assert losses(name) == losses("disk"), (losses(name), losses("disk"))
    assert "0 differ" in megahost(store, "checkpoint", "diff", "disk", f"{place}/{name}", "--all", **environment)
    megahost(store, "checkpoint", "verify", f"{place}/{name}", **environment)
    store.fault = lambda request: (403, "AccessDenied") if request.method == "PUT" else None
    said = megahost(store, *words, "--resume", "--set", "train.iters=5", status=5, **environment)
    assert "access is denied to the credentials of" in said, said
    store.reset()
    store.fault = lambda request: (403, "SignatureDoesNotMatch")
    said = megahost(store, *words, "--resume", status=5, **environment)
    assert "are refused (SignatureDoesNotMatch)" in said, said
    store.reset()


with Store() as store, tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as work, \
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), Given) as services:
    threading.Thread(target=services.serve_forever, daemon=True).start()
    os.chdir(work)
    pathlib.Path("r.lua").write_text(RECIPE)
    aws_folder(home)
    given = f"http://localhost:{services.server_address[1]}"
    config = pathlib.Path(home, "msc.yaml")
    config.write_text(f"""profiles:
  ours:
    storage_provider:
      type: s3
      options:
        base_path: bucket/through/msc
        endpoint_url: {store.url}
    credentials_provider:
      type: S3Credentials
      options: {{access_key: {KEY}, secret_key: "${{CANARY}}", session_token: {TOKEN}}}
""")
    megahost(store, "run", "r.lua", "--run-dir", "disk", "--set", "train.iters=4")
    run_and_fail(store, "environment", "s3://bucket")
    for profile in ("process", "sso"):
        run_and_fail(store, profile, "s3://bucket", **STATIC, HOME=home, AWS_PROFILE=profile, AWS_ENDPOINT_URL_SSO=given)
    run_and_fail(store, "msc", "msc://ours", **{**STATIC, "MSC_CONFIG": str(config), "CANARY": SECRET, "AWS_ENDPOINT_URL": ""})
    assert any(key.startswith("through/msc/msc/") for key in store.keys()), store.keys()
    said = megahost(store, "checkpoint", "ls", "msc://ours/msc", "--set", f"storage.config={config}", status=5)
    assert "needs the variable CANARY of the environment" in said, said
    # An address with a password is refused before it is in a recipe.
    megahost(store, "run", "r.lua", "--run-dir", "address", "--set", "checkpoint.dir=s3://bucket/address", "--set",
             "storage.use=s3", "--set", f"storage.endpoint=http://me:{SECRET}@localhost", status=2)
    for file in pathlib.Path(work).rglob("*"):
        data = file.read_bytes() if file.is_file() else b""
        assert not any(canary.encode() in data for canary in CANARIES), f"{file} holds a secret"
    services.shutdown()
