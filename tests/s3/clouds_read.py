#!/usr/bin/env python3
"""Google's and Azure's stores through libarrow: checkpoints, weights, corpora and tokenizers are read, under faults and in pages;
saving is refused before the first step; no secret is printed or kept."""

import os
import pathlib
import subprocess
import sys
import tempfile

from clouds import ACCOUNT, ACCOUNT_KEY, CANARIES, Clouds

MEGAHOST = os.environ["MEGAHOST"]
SKIPPED = 77
RECIPE = """return {
  model = { use = "llama", layers = 1, hidden = 32, heads = 4, seq_length = 32 },
  batch = { global = 4, micro = 4 },
  data = { use = "mock" },
  train = { iters = 2 },
  log = { interval = 1 },
}
"""
wrong = []


def megahost(clouds, *words, status=0, **environment):
    ran = subprocess.run([MEGAHOST, *words], env=clouds.environment(**environment), text=True, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT)
    assert ran.returncode == status, (words, ran.returncode, ran.stdout, clouds.seen[-9:])
    assert not any(canary in ran.stdout for canary in CANARIES), ran.stdout
    return ran.stdout


def put(clouds, folder, prefix):
    for file in pathlib.Path(folder).rglob("*"):
        if file.is_file():
            clouds.objects[f"{prefix}/{file.relative_to(folder)}"] = file.read_bytes()


def refused(clouds, sentence, *words, status=5, **environment):
    said = megahost(clouds, *words, status=status, **environment)
    if sentence not in said:
        wrong.append(f"expected {sentence!r}, got {said!r}")
    clouds.reset()


def read(clouds, place, *sets, **environment):
    """Everything that only reads, of a run at `place`."""
    failed = set()

    def once(request):
        key = f"{request.command} {request.path} {request.named.get('range', '')}"
        if key in failed or len(failed) == 3 or not request.path.startswith(("/storage", f"/{ACCOUNT}")) or "action=" in request.path:
            return None
        failed.add(key)
        return 503

    clouds.page, clouds.fault = 2, once
    assert "0 differ" in megahost(clouds, "checkpoint", "diff", "disk", f"{place}/run", "--all", *sets, **environment)
    clouds.reset()
    assert len(failed) == 3, failed
    megahost(clouds, "checkpoint", "verify", f"{place}/run", *sets, **environment)
    assert "step" in megahost(clouds, "checkpoint", "ls", f"{place}/run", *sets, **environment)
    megahost(clouds, "checkpoint", "import", f"{place}/dcp", "-o", f"imported-{place.partition(':')[0]}", *sets, **environment)
    recipe = ("--set", f"storage.use={place.partition(':')[0]}", *sets)
    said = megahost(clouds, "run", "r.lua", "--run-dir", "weights-" + place.partition(":")[0], "--weights", f"{place}/run", *recipe,
                    "--set", "train.iters=1", **environment)
    assert f"weights: {place}/run" in said, said
    megahost(clouds, "run", "r.lua", "--run-dir", "corpus-" + place.partition(":")[0], *recipe, "--set", "data.use=indexed", "--set",
             f'data.paths=["{place}/corpus"]', "--set", f"data.cache={os.getcwd()}/cache", "--set", "train.iters=1", **environment)
    seen = len(clouds.seen)
    refused(clouds, "this storage is read only: the client has no conditional writes", "run", "r.lua", "--run-dir", "refused",
            "--set", f"checkpoint.dir={place}/new", *recipe, **environment)
    assert not os.path.exists("refused/metrics.jsonl") and len(clouds.seen) <= seen, "it trained before it was refused"
    refused(clouds, "there is no folder", "checkpoint", "ls", f"{place}/none", *sets, **environment)
    refused(clouds, 'cannot have the part ".."', "checkpoint", "ls", f"{place}/../x", *sets, **environment)


with Clouds() as clouds, tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    pathlib.Path("r.lua").write_text(RECIPE)
    pathlib.Path("text.txt").write_text("all the words of a small corpus\n\n" * 200)
    ran = subprocess.run([MEGAHOST, "checkpoint", "ls", "gs://bucket/none", "--set", f"storage.endpoint={clouds.url}", "--set",
                          "storage.anonymous=true", "--set", "storage.retry=1"], env=clouds.environment(), capture_output=True, text=True)
    if "libarrow, which is not there" in ran.stderr:
        assert "./megahost arrow fetches it" in ran.stderr, ran.stderr
        print("libarrow is not there: ./megahost arrow")
        sys.exit(SKIPPED)
    megahost(clouds, "run", "r.lua", "--run-dir", "disk")
    megahost(clouds, "checkpoint", "export", "disk", "--to", "dcp", "-o", "dcp")
    megahost(clouds, "data", "prepare", "text.txt", "--output", "corpus", "--tokenizer", "byte")
    for folder in ("disk", "dcp"):
        put(clouds, folder, "bucket/a/" + {"disk": "run", "dcp": "dcp"}[folder])
    for ending in (".bin", ".idx"):
        clouds.objects["bucket/a/corpus" + ending] = next(pathlib.Path(".").glob("corpus*" + ending)).read_bytes()
    google = pathlib.Path(home, "adc.json")
    google.write_text(clouds.google_credentials())
    at = ("--set", f"storage.endpoint={clouds.url}")
    read(clouds, "gs://bucket/a", *at, GOOGLE_APPLICATION_CREDENTIALS=str(google))
    read(clouds, "az://bucket/a", *at)
    for scheme in ("abfs", "abfss"):
        said = megahost(clouds, "checkpoint", "ls", f"{scheme}://bucket@{ACCOUNT}.dfs.core.windows.net/a/run", *at,
                        AZURE_STORAGE_ACCOUNT="other")
        assert "step" in said, said
    config = pathlib.Path(home, "msc.yaml")
    config.write_text(f"""profiles:
  google:
    storage_provider: {{type: gcs, options: {{base_path: bucket/a, endpoint_url: "{clouds.url}"}}}}
  azure:
    storage_provider: {{type: azure, options: {{base_path: bucket/a, endpoint_url: "{clouds.url}/{ACCOUNT}"}}}}
    credentials_provider: {{type: AzureCredentials, options: {{connection: "AccountName={ACCOUNT};AccountKey=${{KEY}}"}}}}
""")
    for profile in ("google", "azure"):
        said = megahost(clouds, "checkpoint", "diff", "disk", f"msc://{profile}/run", "--all", MSC_CONFIG=str(config), KEY=ACCOUNT_KEY,
                        AZURE_STORAGE_KEY="", GOOGLE_APPLICATION_CREDENTIALS=str(google))
        assert "0 differ" in said, said
    ls = ("checkpoint", "ls")
    refused(clouds, "the credentials are refused", *ls, "gs://bucket/a/run", *at, "--set", "storage.anonymous=true")
    refused(clouds, "the credentials are refused", *ls, "az://bucket/a/run", *at, AZURE_STORAGE_KEY="b3RoZXI=")
    refused(clouds, "there is no folder gs://missing/a", *ls, "gs://missing/a", *at, GOOGLE_APPLICATION_CREDENTIALS=str(google))
    refused(clouds, "there is no folder az://missing/a", *ls, "az://missing/a", *at)
    refused(clouds, "no storage account is named", *ls, "az://bucket/a", *at, AZURE_STORAGE_ACCOUNT="")
    refused(clouds, "its account is not one of Azure's", *ls, "abfs://bucket@host.example/a", *at)
    refused(clouds, "storage.endpoint is no address of a store", *ls, "az://bucket/a", "--set", "storage.endpoint=http://me:pass@host", status=2)
    openssl = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
               "subjectAltName=DNS:localhost", "-keyout", f"{home}/key.pem", "-out", f"{home}/ca.pem"]
    subprocess.run(openssl, check=True, capture_output=True)
    with Clouds(certificate=(f"{home}/ca.pem", f"{home}/key.pem")) as secure:
        secure.objects = clouds.objects
        at = ("--set", f"storage.endpoint={secure.url}")
        google.write_text(secure.google_credentials().replace(secure.url, clouds.url))
        for place in ("gs://bucket/a/run", "az://bucket/a/run"):
            named = {"GOOGLE_APPLICATION_CREDENTIALS": str(google)}
            assert "step" in megahost(secure, *ls, place, *at, SSL_CERT_FILE=f"{home}/ca.pem", **named)
        refused(secure, "SSL_CERT_FILE names certificates that are trusted", *ls, "gs://bucket/a/run", *at, "--set", "storage.retry=1", **named)
    for file in pathlib.Path(work).rglob("*"):
        data = file.read_bytes() if file.is_file() else b""
        assert not any(canary.encode() in data for canary in CANARIES), f"{file} holds a secret"
sys.exit("\n".join(wrong) or 0)
