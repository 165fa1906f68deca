"""Small stores for tests that speak what Arrow's clients say: the JSON API of Google Cloud Storage with an OAuth service, and the
Blob service of Azure. Each request must be allowed: a bearer token, or Azure's signature with the account's key.

    with Clouds() as clouds:
        clouds.objects["bucket/a"] = b"text"
        run(["megahost", ...], env=clouds.environment())
"""

import base64
import hashlib
import hmac
import http.server
import json
import os
import re
import ssl
import threading
import urllib.parse

PROJECT_TOKEN = "canaryOfGoogleToken0004"
REFRESH_TOKEN = "canaryOfGoogleRefresh0005"
ACCOUNT, ACCOUNT_KEY = "account", base64.b64encode(b"canaryOfAzureKey0006").decode()
CANARIES = (PROJECT_TOKEN, REFRESH_TOKEN, ACCOUNT_KEY)


class Answer(Exception):
    """Status, body and headers of an answer that ends a request."""


def azure_signature(method, path, query, headers):
    """Source: Azure Storage REST API, "Authorize with Shared Key", version 2009-09-19 and later."""
    names = ("content-encoding", "content-language", "content-length", "content-md5", "content-type", "date",
             "if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range")
    given = [headers.get(name, "") for name in names]
    given[2] = "" if given[2] == "0" else given[2]
    given[5] = "" if "x-ms-date" in headers else given[5]
    own = [f"{name}:{headers[name].strip()}" for name in sorted(headers) if name.startswith("x-ms-")]
    asked = [f"{name.lower()}:{value}" for name, value in sorted(urllib.parse.parse_qsl(query, keep_blank_values=True))]
    text = "\n".join([method, *given, *own, f"/{ACCOUNT}{path}", *asked])
    return base64.b64encode(hmac.new(base64.b64decode(ACCOUNT_KEY), text.encode(), hashlib.sha256).digest()).decode()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def serve(self):
        path, _, query = self.path.partition("?")
        self.named = {name.lower(): value for name, value in self.headers.items()}
        self.body = self.rfile.read(int(self.named.get("content-length") or 0)) if "chunked" not in self.named.get(
            "transfer-encoding", "") else self.chunks()
        self.query = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        clouds = self.server.clouds
        clouds.seen.append(f"{self.command} {self.path}")
        try:
            fault = clouds.fault(self)
            if fault:
                raise Answer(fault, b"{}", {})
            if path.startswith(f"/{ACCOUNT}/"):
                self.azure(path, query)
            elif path == "/token":
                assert REFRESH_TOKEN in self.body.decode(), self.body
                raise Answer(200, json.dumps({"access_token": PROJECT_TOKEN, "token_type": "Bearer", "expires_in": 3600}).encode(), {})
            else:
                self.google(path)
            raise Answer(400, b"{}", {})
        except Answer as answer:
            status, body, headers = answer.args
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = serve

    def chunks(self):
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def part(self, data, given):
        """The bytes of "bytes=2-5", and their Content-Range."""
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", given)
        if not found:
            return 200, data, {}
        begin, end = int(found[1]), min(int(found[2] or len(data)) + 1, len(data))
        if begin >= len(data):
            raise Answer(416, b"", {})
        return 206, data[begin:end], {"Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"}

    # Google Cloud Storage

    def google(self, path):
        clouds = self.server.clouds
        if self.named.get("authorization") != f"Bearer {PROJECT_TOKEN}":
            raise Answer(401, b'{"error": {"code": 401, "message": "Invalid Credentials"}}', {})
        found = re.fullmatch(r"/(upload/)?storage/v1/b/([^/]+)/o(?:/(.+))?", path)
        if not found:
            raise Answer(404, b"{}", {})
        bucket, name = found[2], urllib.parse.unquote(found[3] or self.query.get("name", ""))
        key = f"{bucket}/{name}"
        if bucket not in clouds.buckets:
            raise Answer(404, b'{"error": {"code": 404, "message": "The specified bucket does not exist."}}', {})
        if found[1]:
            self.google_upload(key)
        if not name:
            self.google_list(bucket)
        if key not in clouds.objects:
            raise Answer(404, b'{"error": {"code": 404, "message": "No such object"}}', {})
        if self.command == "DELETE":
            del clouds.objects[key]
            raise Answer(204, b"", {})
        if self.query.get("alt") == "media":
            raise Answer(*self.part(clouds.objects[key], self.named.get("range", "")))
        raise Answer(200, json.dumps(self.google_about(key)).encode(), {})

    def google_about(self, key):
        bucket, _, name = key.partition("/")
        data = self.server.clouds.objects[key]
        generation = str(int.from_bytes(hashlib.sha256(data).digest()[:6], "big"))
        return {"kind": "storage#object", "name": name, "bucket": bucket, "size": str(len(data)), "generation": generation,
                "etag": generation, "updated": "2026-01-01T00:00:00Z", "timeCreated": "2026-01-01T00:00:00Z",
                "contentType": "application/octet-stream"}

    def google_upload(self, key):
        clouds = self.server.clouds
        if self.command == "POST":
            upload = f"upload-{len(clouds.uploads)}"
            clouds.uploads[upload] = b""
            name = urllib.parse.quote(self.query["name"], safe="")
            where = f"{clouds.url}{self.path.partition('?')[0]}?uploadType=resumable&name={name}&upload_id={upload}"
            raise Answer(200, b"", {"Location": where})
        upload = self.query["upload_id"]
        clouds.uploads[upload] += self.body
        if self.named["content-range"].endswith("/*"):  # more is to come
            got = len(clouds.uploads[upload])
            raise Answer(308, b"", {"Range": f"bytes=0-{got - 1}"} if got else {})
        clouds.objects[key] = clouds.uploads.pop(upload)
        raise Answer(200, json.dumps(self.google_about(key)).encode(), {})

    def google_list(self, bucket):
        clouds, start = self.server.clouds, f"{bucket}/{self.query.get('prefix', '')}"
        items, prefixes = [], set()
        for key in sorted(clouds.objects):
            if key.startswith(start):
                rest = key[len(start):]
                delimiter = self.query.get("delimiter", "")
                if delimiter and delimiter in rest:
                    prefixes.add(key[len(bucket) + 1: len(start)] + rest.partition(delimiter)[0] + delimiter)
                else:
                    items.append(self.google_about(key))
        begin = int(self.query.get("pageToken") or 0)
        page = {"kind": "storage#objects", "items": items[begin:begin + clouds.page], "prefixes": sorted(prefixes)}
        if begin + clouds.page < len(items):
            page["nextPageToken"] = str(begin + clouds.page)
        raise Answer(200, json.dumps(page).encode(), {})

    # Azure

    def azure(self, path, query):
        clouds = self.server.clouds
        allowed = f"SharedKey {ACCOUNT}:{azure_signature(self.command, path, query, self.named)}"
        if self.named.get("authorization") != allowed:
            raise Answer(403, b"", {"x-ms-error-code": "AuthenticationFailed"})
        _, _, container, *rest = path.split("/")
        key = "/".join([container, *map(urllib.parse.unquote, rest)])
        if self.query.get("action"):  # the service for accounts with folders, which this account has none of
            raise Answer(400, b"", {"x-ms-error-code": "HierarchicalNamespaceNotEnabled"})
        if container not in clouds.buckets:
            raise Answer(404, b"", {"x-ms-error-code": "ContainerNotFound"})
        if self.query.get("comp") == "list":
            self.azure_list(container)
        if self.query.get("restype") == "container":
            raise Answer(200, b"", self.azure_about(b""))
        if key not in clouds.objects:
            raise Answer(404, b"", {"x-ms-error-code": "BlobNotFound"})
        data = clouds.objects[key]
        status, body, headers = self.part(data, self.named.get("x-ms-range", "") or self.named.get("range", ""))
        if self.command not in ("GET", "HEAD"):
            raise Answer(405, b"", {"x-ms-error-code": "MethodNotAllowed"})
        raise Answer(status, body, {**self.azure_about(data), **headers, "Content-Length": str(len(body))})

    def azure_about(self, data):
        return {"ETag": f'"{hashlib.sha256(data).hexdigest()[:16]}"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
                "x-ms-creation-time": "Thu, 01 Jan 2026 00:00:00 GMT", "x-ms-blob-type": "BlockBlob", "x-ms-version": "2020-10-02",
                "x-ms-lease-state": "available", "x-ms-lease-status": "unlocked", "x-ms-server-encrypted": "true",
                "Content-Type": "application/octet-stream"}

    def azure_list(self, container):
        clouds, start = self.server.clouds, f"{container}/{self.query.get('prefix', '')}"
        names, prefixes = [], set()
        for key in sorted(clouds.objects):
            if key.startswith(start):
                rest, delimiter = key[len(start):], self.query.get("delimiter", "")
                if delimiter and delimiter in rest:
                    prefixes.add(key[len(container) + 1: len(start)] + rest.partition(delimiter)[0] + delimiter)
                else:
                    names.append(key)
        begin = int(self.query.get("marker") or 0)
        blobs = "".join(
            f"<Blob><Name>{key[len(container) + 1:]}</Name><Properties><Content-Length>{len(clouds.objects[key])}</Content-Length>"
            f"<Last-Modified>Thu, 01 Jan 2026 00:00:00 GMT</Last-Modified><Etag>0x1</Etag><BlobType>BlockBlob</BlobType>"
            f"</Properties></Blob>" for key in names[begin:begin + clouds.page])
        blobs += "".join(f"<BlobPrefix><Name>{prefix}</Name></BlobPrefix>" for prefix in sorted(prefixes) if not begin)
        more = begin + clouds.page if begin + clouds.page < len(names) else ""
        raise Answer(200, (f'<?xml version="1.0" encoding="utf-8"?><EnumerationResults ServiceEndpoint="{clouds.url}/{ACCOUNT}/" '
                           f'ContainerName="{container}"><Blobs>{blobs}</Blobs><NextMarker>{more}</NextMarker></EnumerationResults>').encode(),
                     {"Content-Type": "application/xml", "x-ms-version": "2020-10-02"})


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        pass


class Clouds:
    """`fault(request)` gives a status that a request is answered with, or nothing."""

    def __init__(self, certificate=None):
        self.certificate = certificate
        self.buckets, self.objects, self.uploads, self.page = {"bucket"}, {}, {}, 1000
        self.reset()

    def reset(self):
        self.seen, self.fault = [], lambda request: None

    def __enter__(self):
        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.clouds = self
        if self.certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self.certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http{'s' if self.certificate else ''}://localhost:{self.server.server_address[1]}"
        return self

    def __exit__(self, *_):
        self.server.shutdown()

    def google_credentials(self):
        """The file that `gcloud auth application-default login` leaves."""
        return json.dumps({"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": REFRESH_TOKEN,
                           "token_uri": f"{self.url}/token"})

    def environment(self, **more):
        """The variables of a program that uses them, and no one's own."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("GOOGLE_", "AZURE_", "AWS_"))}
        return {**kept, "HOME": "/nonexistent", "AZURE_STORAGE_ACCOUNT": ACCOUNT, "AZURE_STORAGE_KEY": ACCOUNT_KEY, **more}
