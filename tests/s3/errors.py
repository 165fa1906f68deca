#!/usr/bin/env python3
"""Credentials of each source, addresses of each kind, and what goes wrong in a sentence. No secret is ever printed."""

import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading

from given import Given, aws_folder, sso_token
from store import CANARIES, CONTAINER_TOKEN, REFRESH_TOKEN, SECRET, SSO_TOKEN, Refused, Store, free_port, skip_without_moto, verify

skip_without_moto()
MEGAHOST = os.environ["MEGAHOST"]
STATIC = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_SESSION_TOKEN": ""}
NONE_YET = "s3://bucket/nothing"  # whoever may list it hears that it is empty
wrong = []


def expect(name, store, sentence, *words, place=NONE_YET, status=5, **environment):
    ran = subprocess.run([MEGAHOST, "checkpoint", "ls", place, "--set", "storage.tries=2", *words], text=True,
                         env=store.environment(**environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said = ran.stdout
    if sentence not in said or ran.returncode != status or any(canary in said for canary in CANARIES):
        wrong.append(f"{name}: expected {sentence!r}, got {ran.returncode} {said!r}; refused: {store.refused}")
    store.reset()


def allowed(name, store, *words, **environment):
    expect(name, store, "there is no folder s3://bucket/nothing", *words, **environment)


def credentials(store, home, given):
    aws_folder(home)
    base = {**STATIC, "HOME": home, "AWS_ENDPOINT_URL_STS": given, "AWS_ENDPOINT_URL_SSO": given,
            "AWS_ENDPOINT_URL_SSO_OIDC": given}
    elsewhere = {**base, "HOME": "/nonexistent"}
    allowed("environment", store)
    allowed("default profile", store, **base)
    allowed("profile of the recipe before the environment", store, "--set", "storage.profile=process",
            **{**base, "AWS_ACCESS_KEY_ID": "other"})
    for profile in ("process", "role", "web", "sso"):
        allowed("profile " + profile, store, **base, AWS_PROFILE=profile)
    allowed("web identity", store, **elsewhere, AWS_ROLE_ARN="arn:web", AWS_WEB_IDENTITY_TOKEN_FILE=home + "/web")
    allowed("container", store, **elsewhere, AWS_CONTAINER_CREDENTIALS_FULL_URI=given + "/container",
            AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=home + "/token")
    allowed("machine", store, **{**elsewhere, "AWS_EC2_METADATA_DISABLED": "", "AWS_EC2_METADATA_SERVICE_ENDPOINT": given})
    for profile in ("expired", "not-renewed", "late"):
        expect("sign-on that is " + profile, store, "the token of single sign-on has expired", **base, AWS_PROFILE=profile)
    for again in range(2):  # the second one by the token that the first has kept
        allowed("renewed sign-on", store, **base, AWS_PROFILE="renewed")
    kept = json.loads(sso_token(home, "ends").read_text())
    if (kept["accessToken"], kept["refreshToken"]) != (SSO_TOKEN, REFRESH_TOKEN + "-next") or kept["expiresAt"] < "2026":
        wrong.append("the renewed token is not kept")
    if sso_token(home, "ends").stat().st_mode & 0o777 != 0o600:
        wrong.append("others may read the renewed token")
    expect("process without a key", store, "the credential_process of profile broken: the answer holds no AccessKeyId", **base,
           AWS_PROFILE="broken")
    expect("address of a container", store, "credentials of the container: its address is neither http nor https", **elsewhere,
           AWS_CONTAINER_CREDENTIALS_FULL_URI=f"ftp://me:{SECRET}@host", AWS_CONTAINER_AUTHORIZATION_TOKEN=CONTAINER_TOKEN)
    expect("no credentials", store, "there are no credentials for the object store", **elsewhere)
    expect("container refuses", store, "credentials of the container: the answer is 403 AccessDenied", **elsewhere,
           AWS_CONTAINER_CREDENTIALS_FULL_URI=given + "/container", AWS_CONTAINER_AUTHORIZATION_TOKEN="other")


def sentences(store):
    expect("wrong secret", store, "the credentials of the environment are refused (SignatureDoesNotMatch)",
           AWS_SECRET_ACCESS_KEY="other")
    expect("unknown key", store, "are refused (InvalidAccessKeyId)", AWS_ACCESS_KEY_ID="OTHER")
    expect("no bucket", store, "there is no bucket missing at localhost", place="s3://missing/a")
    expect("bucket's name", store, '"b" cannot be the name of a bucket', place="s3://b/a")
    expect("parent folder", store, 'a key cannot have the part ".."', place="s3://bucket/a/../b")
    expect("long key", store, "the key has", place="s3://bucket/" + "k" * 1025)
    expect("unreachable", store, "does not answer: Couldn't connect to server, after 2 tries",
           AWS_ENDPOINT_URL=f"http://localhost:{free_port()}")
    expect("no host", store, "does not answer: Couldn't resolve host name", AWS_ENDPOINT_URL="http://nowhere.invalid")
    expect("no address", store, "is no address of a store", AWS_ENDPOINT_URL="localhost:9000", status=2)
    expect("secret in the address", store, "is no address of a store", AWS_ENDPOINT_URL=f"http://me:{SECRET}@localhost", status=2)
    expect("no storage", store, 'no plugin offers the storage "nfs"', place="nfs://bucket/a", status=2)
    expect("no option", store, "unknown option `regoin`", "--set", "storage.regoin=x", status=2)
    for name, answer, sentence in (
            ("permission", (403, "AccessDenied"), "access is denied to the credentials of the environment (AccessDenied)"),
            ("clock", (403, "RequestTimeTooSkewed"), "this machine's clock differs from the server's by 0 seconds"),
            ("expired", "expired", "the credentials of the environment have expired, after 2 tries"),
            ("quota", (403, "QuotaExceeded"), "the quota is used up (QuotaExceeded)"),
            ("busy", "503", "answers 503 SlowDown, after 2 tries"),
            ("unknown", (501, "NotImplemented"), "the store does not know this request (NotImplemented)"),
            ("long for this store", (400, "KeyTooLongError"), "the key is too long for the store"),
            ("other", (400, "Odd", "in two\nlines"), "answers 400 Odd: in two lines")):
        store.fault = lambda request: answer
        expect(name, store, sentence)
    store.clock = 3600
    expect("clock of the machine", store, "this machine's clock differs from the server's by -3600 seconds")
    store.clock = 0


def addresses(store, folder):
    allowed("bucket in the host", store, "--set", "storage.addressing=host")
    store.verify = lambda request: verify(request, secure=True)
    allowed("signatures without the bytes", store, "--set", "storage.sign_payload=never")
    store.verify = verify

    def elsewhere(request):  # a bucket of another region
        verify(request, region="eu-west-2")

    here = store.verify
    for status, code in ((301, "PermanentRedirect"), (400, "AuthorizationHeaderMalformed")):
        def of_region(request):
            try:
                elsewhere(request)
            except Refused as refused:
                raise Refused(status, f"{code}</Code><Region>eu-west-2</Region><Code>") from refused

        store.verify = of_region
        allowed(f"region by {code}", store)
    store.verify = here
    openssl = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
               "subjectAltName=DNS:localhost", "-keyout", f"{folder}/key.pem", "-out", f"{folder}/ca.pem"]
    subprocess.run(openssl, check=True, capture_output=True)
    with Store(certificate=(f"{folder}/ca.pem", f"{folder}/key.pem")) as secure:
        allowed("certificates of a file", secure, AWS_CA_BUNDLE=f"{folder}/ca.pem")
        allowed("certificates of an option", secure, "--set", f"storage.ca_file={folder}/ca.pem")
        secure.verify = verify
        allowed("signatures of the bytes over TLS", secure, "--set", "storage.sign_payload=always", AWS_CA_BUNDLE=f"{folder}/ca.pem")
        expect("unknown certificate", secure, "storage.ca_file or AWS_CA_BUNDLE names the certificates that are trusted")


with Store() as store, tempfile.TemporaryDirectory() as home, http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), Given) as given:
    threading.Thread(target=given.serve_forever, daemon=True).start()
    credentials(store, home, f"http://localhost:{given.server_address[1]}")
    sentences(store)
    addresses(store, home)
    given.shutdown()
sys.exit("\n".join(wrong) or 0)
