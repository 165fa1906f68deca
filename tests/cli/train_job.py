#!/usr/bin/env python3
"""A run in a TrainJob of Kubeflow Trainer reports its progress to the server that the controller names, by HTTPS with the pod's
token, and goes on where that takes nothing.

usage: train_job.py FOLDER   of a certificate for localhost and its key (cert.pem, key.pem)
"""

import datetime
import http.server
import json
import os
import pathlib
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time

PROGRAM = os.environ["MEGAHOST"]
TINY = pathlib.Path(os.environ["MEGAHOST_SOURCE"]) / "tests/cli/tiny.toml"
KEYS = pathlib.Path(sys.argv[1])


class Controller(http.server.BaseHTTPRequestHandler):
    """The endpoint for statuses of Kubeflow Trainer's controller."""

    reports, answer = [], 200

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.reports.append((self.path, self.headers["Authorization"], self.headers["Content-Type"], body))
        self.send_response(Controller.answer)
        self.end_headers()
        self.wfile.write(b"no such job")

    def log_message(self, *_):
        pass


def run(folder, url, certificates=KEYS / "cert.pem", *words):
    variables = {"KUBEFLOW_TRAINER_SERVER_URL": url, "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(certificates),
                 "KUBEFLOW_TRAINER_SERVER_TOKEN": str(folder.parent / "token")}
    return subprocess.Popen([PROGRAM, "run", TINY, "--run-dir", folder, *words], env=os.environ | variables,
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def reported(process, code=0):
    """Returns the run's messages and its reports."""
    Controller.reports.clear()
    said = process.communicate()[1]
    assert process.returncode == code, said
    return said, list(Controller.reports)


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    (folder / "token").write_text("a-token\n")
    server = http.server.ThreadingHTTPServer(("localhost", 0), Controller)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(KEYS / "cert.pem", KEYS / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    path = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/a/trainjobs/b/status"
    url = f"https://localhost:{server.server_port}{path}"

    said, reports = reported(run(folder / "whole", url))
    (where, token, content, body), = reports
    assert (where, token, content) == (path, "Bearer a-token", "application/json") and not said, (reports, said)
    status = body["trainerStatus"]
    assert (status["progressPercentage"], status["estimatedRemainingSeconds"]) == (100, 0), status
    metrics = {metric["name"]: metric["value"] for metric in status["metrics"]}
    assert metrics["step"] == "5" and float(metrics["lm loss"]) > 0 and float(metrics["tokens_per_second"]) > 0, metrics
    written = datetime.datetime.strptime(status["lastUpdatedTime"], "%Y-%m-%dT%H:%M:%SZ")
    assert abs(written - datetime.datetime.utcnow()) < datetime.timedelta(minutes=10), status

    # A run that is ended early has come so far, and ranks that are processes report once.
    process = run(folder / "ended", url, KEYS / "cert.pem", "--nproc", "2", "--set", "train.iters=1000000")
    while not (folder / "ended/metrics.jsonl").exists() or not (folder / "ended/metrics.jsonl").read_text().count("\n"):
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    said, reports = reported(process, 128 + signal.SIGTERM)
    (*_, body), = reports
    assert body["trainerStatus"]["progressPercentage"] < 100 and "estimatedRemainingSeconds" not in body["trainerStatus"], body

    # Whoever takes nothing costs a warning.
    Controller.answer = 404
    said, _ = reported(run(folder / "unknown", url))
    assert f"the status of the TrainJob was not taken by {url}; training goes on" in said and "HTTP status 404: no such job" in said
    said, reports = reported(run(folder / "untrusted", url, folder / "none.pem"))
    assert not reports and "was not taken" in said, said
    said, reports = reported(run(folder / "closed", "http://localhost:1/status"))
    assert not reports and "was not taken" in said, said
    server.shutdown()
print("reports: whole, ended early, refused, untrusted, closed")
