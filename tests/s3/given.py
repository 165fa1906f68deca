"""The one identity of the tests' store, as each source of credentials gives it: services, and a home with the files of AWS."""

import hashlib
import http.server
import json
import pathlib
import sys
import urllib.parse

from store import (CLIENT_SECRET, CONTAINER_TOKEN, KEY, MACHINE_TOKEN, REFRESH_TOKEN, ROLE_SECRET, SECRET, SSO_TOKEN, TOKEN,
                   WEB_TOKEN, Refused, verify)


class Given(http.server.BaseHTTPRequestHandler):
    """STS, a container, a machine and single sign-on, which all give the one identity there is."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self):
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.path, _, self.query = self.path.partition("?")
        self.method, self.headers = self.command, {k.lower(): v for k, v in self.headers.items()}
        try:
            return 200, self.found()
        except (Refused, KeyError, AssertionError) as refused:
            print(f"refused {self.command} {self.path}: {refused!r}", file=sys.stderr)
            return 403, "<Error><Code>AccessDenied</Code></Error>"

    def do_GET(self):
        status, text = self.answer()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    do_PUT = do_POST = do_GET

    def found(self):
        keys = json.dumps({"Code": "Success", "AccessKeyId": KEY, "SecretAccessKey": SECRET, "Token": TOKEN,
                           "Expiration": "2090-01-01T00:00:00Z"})
        if self.path == "/":
            asked = dict(urllib.parse.parse_qsl(self.body.decode()))
            if asked["Action"] == "AssumeRoleWithWebIdentity":
                assert asked["WebIdentityToken"] == WEB_TOKEN and asked["RoleArn"] == "arn:web"
            else:
                verify(self, secret=ROLE_SECRET, token=None, service="sts")
                assert asked["RoleArn"] == "arn:role" and asked["ExternalId"] == "x y"
            return (f"<R><Credentials><AccessKeyId>{KEY}</AccessKeyId><SecretAccessKey>{SECRET}</SecretAccessKey>"
                    f"<SessionToken>{TOKEN}</SessionToken><Expiration>2090-01-01T00:00:00Z</Expiration></Credentials></R>")
        if self.path == "/container":
            assert self.headers["authorization"] == CONTAINER_TOKEN
            return keys
        if self.path == "/latest/api/token":
            assert self.headers["x-aws-ec2-metadata-token-ttl-seconds"]
            return MACHINE_TOKEN
        if self.path.startswith("/latest/meta-data/iam/security-credentials/"):
            assert self.headers["x-aws-ec2-metadata-token"] == MACHINE_TOKEN
            return keys if self.path.endswith("/the-role") else "the-role"
        if self.path == "/token":
            assert json.loads(self.body) == {"clientId": "c", "clientSecret": CLIENT_SECRET, "grantType": "refresh_token",
                                             "refreshToken": REFRESH_TOKEN}
            return json.dumps({"accessToken": SSO_TOKEN, "expiresIn": 28800, "refreshToken": REFRESH_TOKEN + "-next"})
        assert self.path == "/federation/credentials" and self.headers["x-amz-sso_bearer_token"] == SSO_TOKEN
        assert self.query == "account_id=1&role_name=r"
        return json.dumps({"roleCredentials": {"accessKeyId": KEY, "secretAccessKey": SECRET, "sessionToken": TOKEN,
                                               "expiration": 3786912000000}})


def sso_token(home, session):
    """The file in which `aws sso login` leaves a session's token."""
    return pathlib.Path(home, ".aws/sso/cache", hashlib.sha1(session.encode()).hexdigest() + ".json")


def aws_folder(home):
    aws = pathlib.Path(home, ".aws")
    (aws / "sso/cache").mkdir(parents=True)
    (aws / "credentials").write_text(f"[default]\naws_access_key_id={KEY}\naws_secret_access_key={SECRET}\naws_session_token={TOKEN}\n"
                                     f"[base]\naws_access_key_id={KEY}\naws_secret_access_key={ROLE_SECRET}\n")
    document = json.dumps({"Version": 1, "AccessKeyId": KEY, "SecretAccessKey": SECRET, "SessionToken": TOKEN})
    (aws / "document").write_text(document)
    (aws / "config").write_text(
        f"[profile process]\ncredential_process = cat '{aws}/document'; echo {SECRET} >&2\n"
        f"[profile broken]\ncredential_process = echo '{{\"SecretAccessKey\": \"{SECRET}\"}}'\n"
        f"[profile role]\nrole_arn = arn:role\nsource_profile = base\nexternal_id = x y\n"
        f"[profile web]\nrole_arn = arn:web\nweb_identity_token_file = {home}/web\n"
        f"[profile sso]\nsso_session = company\nsso_account_id = 1\nsso_role_name = r\n"
        + "".join(f"[profile {profile}]\nsso_session = {session}\nsso_account_id = 1\nsso_role_name = r\n"
                  f"[sso-session {session}]\nsso_region = us-east-1\n"
                  for profile, session in (("expired", "old"), ("renewed", "ends"), ("not-renewed", "revoked"), ("late", "unknown")))
        + "[sso-session company]\nsso_region = us-east-1\n")
    renewable = {"clientId": "c", "clientSecret": CLIENT_SECRET, "registrationExpiresAt": "2090-01-01T00:00:00Z"}
    for session, until, more in (("company", "2090", {}), ("old", "2020", {}), ("ends", "2020", {**renewable, "refreshToken": REFRESH_TOKEN}),
                                 ("revoked", "2020", {**renewable, "refreshToken": REFRESH_TOKEN + "-revoked"}),
                                 ("unknown", "2020", {**renewable, "refreshToken": REFRESH_TOKEN,
                                                      "registrationExpiresAt": "2020-01-01T00:00:00Z"})):
        sso_token(home, session).write_text(json.dumps({"accessToken": SSO_TOKEN if until == "2090" else "ended",
                                                        "expiresAt": f"{until}-01-01T00:00:00Z", **more}))
    pathlib.Path(home, "web").write_text(WEB_TOKEN + "\n")
    pathlib.Path(home, "token").write_text(CONTAINER_TOKEN + "\n")
