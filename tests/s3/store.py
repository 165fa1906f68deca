"""An object store for tests: moto behind a proxy that verifies each signature and fails as it is told.

    with Store() as store:
        store.fault = lambda request: "503" if request.number == 7 else None
        run(["megahost", ...], env=store.environment())
"""

import contextlib
import datetime
import hashlib
import hmac
import http.client
import http.server
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import urllib.parse

KEY, SECRET, TOKEN = "AKIATESTTESTTESTTEST", "canarySecretCanarySecretCanarySecret0001", "canaryTokenCanaryTokenCanary0002"
WEB_TOKEN, SSO_TOKEN, CONTAINER_TOKEN, MACHINE_TOKEN, ROLE_SECRET, REFRESH_TOKEN, CLIENT_SECRET = (
    f"canaryOfThe{source}0003" for source in ("WebIdentity", "SingleSignOn", "Container", "Machine", "Role", "Refresh", "Client"))
CANARIES = (SECRET, TOKEN, WEB_TOKEN, SSO_TOKEN, CONTAINER_TOKEN, MACHINE_TOKEN, ROLE_SECRET, REFRESH_TOKEN, CLIENT_SECRET)
SKIPPED = 77
PYTHON = pathlib.Path(os.environ["MEGAHOST_S3_ENVIRONMENT"]) / "bin/python"
REGION = "us-east-1"
FAULTS = ("503", "500", "cut", "lost", "slow", "expired")


def skip_without_moto():
    if not PYTHON.exists():
        print(f"moto is not there: tests/s3/environment.sh {PYTHON.parent.parent}")
        sys.exit(SKIPPED)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def error(code, message="no"):
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>'.encode()


def sign_text(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def quoted(text, safe=""):
    return urllib.parse.quote(text, safe=safe + "-._~")


def signature_of(request, names, payload, when, secret, region, service):
    pairs = urllib.parse.parse_qsl(request.query, keep_blank_values=True)
    query = "&".join(sorted(f"{quoted(name)}={quoted(value)}" for name, value in pairs))
    path = quoted(urllib.parse.unquote(request.path), "/")
    if (path, query) != (request.path, request.query):  # it is sent as it is signed
        raise Refused(403, "SignatureDoesNotMatch")
    canonical = "\n".join([request.method, path, query, *(f"{name}:{request.headers[name]}" for name in names), "",
                           ";".join(names), payload])
    text = "\n".join(["AWS4-HMAC-SHA256", when, f"{when[:8]}/{region}/{service}/aws4_request",
                      hashlib.sha256(canonical.encode()).hexdigest()])
    signing = ("AWS4" + secret).encode()
    for part in (when[:8], region, service, "aws4_request"):
        signing = sign_text(signing, part)
    return sign_text(signing, text).hex()


class Refused(Exception):
    """A request that a store would refuse: status and code."""


def verify(request, secret=SECRET, token=TOKEN, service="s3", region=REGION, secure=False, clock=0):
    """The signature, as strictly as a store whose clock is ahead: what is sent is what is signed."""
    found = re.fullmatch(
        r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([\w-]+)/(\w+)/aws4_request, ?SignedHeaders=([a-z0-9;-]+), ?Signature=([0-9a-f]{64})",
        request.headers.get("authorization", ""))
    if not found:
        raise Refused(403, "AccessDenied")
    key, day, its_region, its_service, names, signature = found.groups()
    names = names.split(";")
    if key != KEY:
        raise Refused(403, "InvalidAccessKeyId")
    if request.headers.get("x-amz-security-token") != token:
        raise Refused(403, "InvalidToken")
    when = request.headers["x-amz-date"]
    moment = datetime.datetime.strptime(when, "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.timezone.utc)
    if abs(time.time() + clock - moment.timestamp()) > 900:
        raise Refused(403, "RequestTimeTooSkewed")
    must = {name for name in request.headers if name.startswith("x-amz-")} | {"host"}
    must |= {"range", "if-match", "if-none-match", "content-type"} & set(request.headers)
    if its_service != service or not when.startswith(day) or not must <= set(names) or names != sorted(names):
        raise Refused(403, "SignatureDoesNotMatch")
    if its_region != region:
        raise Refused(400, "AuthorizationHeaderMalformed")
    payload = hashlib.sha256(request.body).hexdigest()
    if service == "s3":
        payload = request.headers["x-amz-content-sha256"]
        if payload != ("UNSIGNED-PAYLOAD" if secure else hashlib.sha256(request.body).hexdigest()):
            raise Refused(400, "XAmzContentSHA256Mismatch")
    if signature_of(request, names, payload, when, secret, region, service) != signature:
        raise Refused(403, "SignatureDoesNotMatch")


class Request:
    def __init__(self, handler, number):
        self.method = handler.command
        self.path, _, self.query = handler.path.partition("?")
        self.headers = {name.lower(): value for name, value in handler.headers.items()}
        size = int(self.headers.get("content-length") or 0)
        self.body = handler.rfile.read(size)
        self.whole = len(self.body) == size  # else its sender has died
        self.number = number

    def __str__(self):
        return f"{self.method} {self.path}?{self.query} {self.headers.get('range', '')}"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def date_time_string(self, timestamp=None):
        return super().date_time_string((timestamp or time.time()) + self.server.store.clock)

    def reply(self, status, body, headers=(), cut=False):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = self.close_connection or cut

    def serve(self):
        store = self.server.store
        with store.lock:
            store.count += 1
            request = Request(self, store.count)
        store.seen.append(str(request))
        if not request.whole:
            self.close_connection = True
            return None
        fault = store.fault(request)
        try:
            if fault in ("503", "500"):
                return self.reply(int(fault), error("SlowDown" if fault == "503" else "InternalError"))
            if fault == "expired":
                return self.reply(403, error("ExpiredToken"))
            if isinstance(fault, tuple):  # an answer of the test's own
                return self.reply(fault[0], error(*fault[1:]))
            try:
                store.verify(request)
            except Refused as refused:
                store.refused.append(f"{refused.args}: {request}")
                return self.reply(refused.args[0], error(refused.args[1]))
            status, body, headers = store.forward(request)
            if store.after(request):
                fault = "lost"
            if fault == "slow":  # longer than a stalled connection may be; done in its order, as at Amazon, where the later put wins
                time.sleep(1.5)
            if fault == "lost":  # done, and never told
                self.close_connection = True
                return self.connection.shutdown(socket.SHUT_RDWR)
            return self.reply(status, body, headers, cut=fault == "cut" and len(body) > 0)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = serve


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_):
        pass


class Store:
    """`fault(request)` says what goes wrong with a request: one of FAULTS, (status, code) or nothing. `after(request)` is
    called when it has been done, and says whether its answer gets lost."""

    def __init__(self, buckets=("bucket",), certificate=None):
        self.buckets, self.certificate = buckets, certificate
        self.lock = threading.Lock()
        self.verify = lambda request: verify(request, secure=certificate is not None, clock=self.clock)
        self.clock = 0  # how many seconds it is ahead
        self.reset()

    def reset(self):
        self.count, self.seen, self.refused = 0, [], []
        self.fault = self.after = lambda request: None
        self.page = 1000  # keys of one answer

    def __enter__(self):
        self.stack = contextlib.ExitStack()
        self.start()
        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.store = self
        if self.certificate:
            import ssl
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self.certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.stack.callback(self.server.shutdown)
        self.url = f"http{'s' if self.certificate else ''}://localhost:{self.server.server_address[1]}"
        for _ in range(600):
            with contextlib.suppress(OSError):
                self.asks("GET", "/")
                break
            time.sleep(0.05)
        for bucket in self.buckets:
            self.asks("PUT", "/" + bucket)
        return self

    def start(self):
        log = pathlib.Path(self.stack.enter_context(tempfile.TemporaryDirectory()), "moto.txt")
        with log.open("w") as out:
            moto = subprocess.Popen([PYTHON, "-m", "moto.server", "-p", "0"], stdout=out, stderr=out)  # a port that stays its own
        self.stack.callback(lambda: (moto.kill(), moto.wait()))
        for _ in range(600):
            if told := re.search(r"Running on http://127\.0\.0\.1:(\d+)\n", log.read_text()):
                self.port = int(told[1])
                return
            time.sleep(0.1)
        sys.exit(f"moto does not start: {log.read_text()}")

    def __exit__(self, *_):
        self.stack.close()

    def asks(self, method, path, body=b"", headers={}):
        return self.exchange(method, path, body, headers)

    def exchange(self, method, path, body, headers):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as there:
            there.request(method, path, body, {**headers, "Content-Length": str(len(body))})
            answer = there.getresponse()
            return answer.status, answer.read(), answer.getheaders()

    def forward(self, request):
        path = request.path
        bucket, dot, rest = request.headers["host"].partition(".localhost")
        if dot:  # the bucket is in the host
            path = f"/{bucket}{path}"
        leave = {"host", "content-length", "connection", "authorization", "x-amz-security-token", "user-agent", "accept"}
        headers = {name: value for name, value in request.headers.items() if name not in leave}
        headers["authorization"] = f"AWS4-HMAC-SHA256 Credential={KEY}/20300101/{REGION}/s3/aws4_request"
        query = request.query + (f"&max-keys={self.page}" if "list-type=2" in request.query else "")
        status, body, answer = self.asks(request.method, path + ("?" + query if query else ""), request.body, headers)
        upload = re.search(r"uploadId=([^&]*)", request.query)
        if status >= 500 and upload and urllib.parse.unquote(upload[1]) not in self.uploads(path.split("/")[1]):
            status, body, answer = 404, error("NoSuchUpload"), []  # what moto should say
        return status, body, [(k, v) for k, v in answer
                              if k.lower() not in ("transfer-encoding", "connection", "content-length", "server", "date")]

    def environment(self, **more):
        """The variables of a program that uses the store, and no one's own."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        return {**kept, "AWS_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
                "AWS_SESSION_TOKEN": TOKEN, "AWS_EC2_METADATA_DISABLED": "true", "HOME": "/nonexistent", **more}

    def keys(self, bucket="bucket"):
        body = self.asks("GET", f"/{bucket}?list-type=2")[1].decode()
        return re.findall(r"<Key>(.*?)</Key>", body)

    def uploads(self, bucket="bucket"):
        return re.findall(r"<UploadId>(.*?)</UploadId>", self.asks("GET", f"/{bucket}?uploads")[1].decode())


class Gateway(Store):
    """A RADOS gateway in place of moto, which verifies signatures itself."""

    def __init__(self):
        super().__init__()
        self.verify = lambda request: verify(request, token=None)

    def start(self):
        if not shutil.which("radosgw"):
            print("there is no RADOS gateway: apt-get install ceph-mon ceph-osd radosgw ceph-common")
            sys.exit(SKIPPED)
        self.port = free_port()
        self.folder = folder = pathlib.Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.stack.callback(lambda: [os.kill(process, signal.SIGKILL) for process in self.processes()])
        subprocess.run([pathlib.Path(__file__).with_name("gateway.sh"), folder, str(self.port), KEY, SECRET], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def processes(self):
        return [int(file.read_text()) for file in self.folder.glob("out/*.pid")]

    def cpu_seconds(self):
        ticks = 0
        for process in self.processes():
            of_process = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += int(of_process[11]) + int(of_process[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def environment(self, **more):
        return super().environment(**{"AWS_SESSION_TOKEN": "", **more})

    def forward(self, request):
        status, body, answer = self.exchange(
            request.method, request.path + ("?" + request.query if request.query else ""), request.body, request.headers)
        return status, body, [(k, v) for k, v in answer if k.lower() not in ("transfer-encoding", "connection", "content-length")]

    def asks(self, method, path, body=b""):
        asked = types.SimpleNamespace(method=method, path=path.partition("?")[0], body=body)
        asked.query = "&".join(part if "=" in part else part + "=" for part in path.partition("?")[2].split("&") if part)
        when, names = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()), ["host", "x-amz-content-sha256", "x-amz-date"]
        payload = hashlib.sha256(body).hexdigest()
        asked.headers = {"host": f"localhost:{self.port}", "x-amz-content-sha256": payload, "x-amz-date": when}
        signature = signature_of(asked, names, payload, when, SECRET, REGION, "s3")
        asked.headers["authorization"] = (f"AWS4-HMAC-SHA256 Credential={KEY}/{when[:8]}/{REGION}/s3/aws4_request, "
                                          f"SignedHeaders={';'.join(names)}, Signature={signature}")
        return self.exchange(method, asked.path + ("?" + asked.query if asked.query else ""), body, asked.headers)


def random_faults(share, seed, kinds=FAULTS):
    """Each request fails with this probability, and never the same one more than three times."""
    dice, failed, lock = random.Random(seed), {}, threading.Lock()

    def fault(request):
        with lock:
            key = str(request)
            if dice.random() < share and failed.get(key, 0) < 3:
                failed[key] = failed.get(key, 0) + 1
                return dice.choice(kinds)
            return None

    return fault
