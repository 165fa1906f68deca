#!/usr/bin/env python3
"""`megahost status`: of a run that is going, was killed, went on to its end; as a table, as JSON and as Prometheus reads it."""

import http.server
import json
import math
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

PROGRAM = os.environ["MEGAHOST"]
SOURCE = pathlib.Path(os.environ["MEGAHOST_SOURCE"])
TINY = SOURCE / "tests/cli/tiny.toml"


def status(*words, code=0):
    done = subprocess.run([PROGRAM, "status", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == code, done
    return done.stdout


def facts(run):
    return json.loads(status(run, "--json"))["runs"][0]


def train(run, *words):
    return [PROGRAM, "run", TINY, "--run-dir", run, *words]


def going(run):
    """A long run that evaluates and saves, once there is a checkpoint."""
    process = subprocess.Popen(train(run, "--set", "train.iters=1000000", "--set", "checkpoint.interval=20", "--set",
                                     "train.eval_interval=20", "--set", "train.eval_iters=1", "--set", "log.interval=1000"),
                               stdout=subprocess.DEVNULL)
    while not (run / "metrics.jsonl").exists() or facts(run)["checkpoint"] is None:
        assert process.poll() is None
        time.sleep(0.05)
    return process


class Collector(http.server.BaseHTTPRequestHandler):
    """The part of an OpenTelemetry collector that takes metrics."""

    taken = []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])), parse_constant=lambda word: 1 / 0)
        self.taken.append((self.path, self.headers["Content-Type"], body))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


def relay(endpoint, *runs):
    return subprocess.run([SOURCE / "examples/otlp_relay.py", *runs, "--once", "--endpoint", endpoint, "--megahost", PROGRAM],
                          capture_output=True, text=True)


def samples(text):
    """Name, labels and value of each line, held to the grammar of the exposition format."""
    found, families = {}, set()
    for line in text.splitlines():
        head = re.fullmatch(r"# (HELP|TYPE) (megahost_\w+) (.+)", line)
        if head:
            assert head[1] == "HELP" or head[3] in ("gauge", "counter"), line
            assert head[1] == "TYPE" or head[2] not in families, f"a family twice: {line}"
            families.add(head[2])
            continue
        sample = re.fullmatch(r'(megahost_\w+)\{run="((?:[^"\\]|\\.)*)"(?:,(?:loss|cause|rank)="([^"]*)")?\} (\S+)', line)
        assert sample and sample[1] in families, line
        found[sample[1], sample[2], sample[3]] = float(sample[4])
    return found, families


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    run = folder / "run"
    process = going(run)
    try:
        found = facts(run)
        assert found["state"] == "running" and found["process"] == process.pid and found["host"] == socket.gethostname(), found
        assert found["iterations"] == 1000000 and found["step"] >= found["checkpoint"] >= 20, found
        assert found["samples"] == 2 * found["step"] and found["tokens"] == 32 * found["step"], found
        assert found["remaining_seconds"] == (1000000 - found["step"]) * found["step_seconds"] > 0, found
        assert found["validation"]["step"] >= 20 and found["losses"]["lm loss"] > 0 and found["ranks"] == 1, found
        text = status(run)
        assert f"running: process {process.pid} of {socket.gethostname()}" in text and "remaining" in text, text
        again = subprocess.run(train(run, "--resume"), capture_output=True, text=True)
        assert again.returncode != 0 and f"another run is writing to this folder (process {process.pid} of" in again.stderr
        process.send_signal(signal.SIGSTOP)
        past = time.time() - 3600
        os.utime(run / "metrics.jsonl", (past, past))
        assert "1h 00m ago: far longer than a step" in status(run), status(run)
        # A run of another machine, whose lock this one does not see: it runs while its metrics are fresh.
        elsewhere = folder / "elsewhere"
        shutil.copytree(run, elsewhere)
        (elsewhere / ".lock").write_text("another-host 17\n")
        os.utime(elsewhere / "metrics.jsonl", (past, past))
        assert facts(elsewhere)["state"] == "stopped"
        os.utime(elsewhere / "metrics.jsonl")
        assert facts(elsewhere)["state"] == "running"
        assert "running: process 17 of another-host" in status(elsewhere)
    finally:
        process.kill()
        process.wait()
    found = facts(run)
    assert found["state"] == "stopped" and found["remaining_seconds"] is None, found

    done = folder / 'done "1"'  # a name that needs escapes
    subprocess.run(train(done), check=True, stdout=subprocess.DEVNULL)
    found = facts(done)
    assert (found["state"], found["step"], found["iterations"], found["checkpoint"]) == ("finished", 5, 5, 5), found

    # Steps that were skipped, a norm that is no number, a line that a crash cut off.
    with open(done / "metrics.jsonl", "a") as file:
        file.write('{"step": 6, "samples": 12, "tokens": 192, "losses": {}, "lr": 0.1, "gradient_norm": null, "seconds": 0.1, '
                   '"skipped": "nan"}\n{"step": 7, "sam')
    found = facts(done)
    assert (found["step"], found["skipped"], bool(found["losses"])) == (6, 1, True), found

    begun = folder / "begun"  # before its first step
    begun.mkdir()
    (begun / "recipe.toml").write_text("train.samples = 100\nbatch.global = 10\n")
    found = facts(begun)
    assert (found["state"], found["step"], found["iterations"], found["checkpoint"]) == ("stopped", 0, 10, None), found
    (begun / "recipe.toml").write_text("this is no recipe")
    assert facts(begun)["iterations"] is None
    assert "none yet" in status(begun)

    rows = status(run, done, begun).splitlines()
    assert rows[0].split() == ["run", "state", "step", "of", "loss", "tokens/s", "remaining", "checkpoint"], rows
    assert [row.rsplit(None, 7)[1] for row in rows[1:]] == ["stopped", "finished", "stopped"], rows

    found, families = samples(status(run, done, begun, "--prometheus"))
    name = str(done).replace('"', '\\"')
    assert found["megahost_step", name, None] == 6 and found["megahost_tokens_total", name, None] == 192, found
    assert math.isnan(found["megahost_gradient_norm", name, None]) and found["megahost_skipped_steps_total", name, None] == 1
    assert found["megahost_loss", name, "lm loss"] > 0 and found["megahost_running", str(run), None] == 0
    assert abs(found["megahost_last_step_timestamp_seconds", name, None] - time.time()) < 600
    assert ("megahost_loss", str(begun), "lm loss") not in found and ("megahost_step", str(begun), None) not in found
    page = (SOURCE / "docs/clusters.md").read_text()
    named = set(re.findall(r"`(megahost_\w+)`", page))
    assert families | {"megahost_remaining_seconds", "megahost_rank_busy_seconds", "megahost_rank_waiting_seconds"} == named, families ^ named

    # The metrics, sent over OpenTelemetry's protocol.
    server = http.server.HTTPServer(("localhost", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://localhost:{server.server_port}"
    sent = relay(endpoint, run, done, begun)
    assert sent.returncode == 0, sent
    (path, content, body), = Collector.taken
    assert (path, content) == ("/v1/metrics", "application/json")
    metrics = body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
    taken = {}
    for metric in metrics:
        data = metric.get("gauge") or metric["sum"]
        assert metric["description"] and metric["name"].endswith("_total") == ("sum" in metric), metric
        for point in data["dataPoints"]:
            labels = {pair["key"]: pair["value"]["stringValue"] for pair in point["attributes"]}
            assert abs(int(point["timeUnixNano"]) - time.time_ns()) < 600e9, point
            other = labels.get("loss") or labels.get("cause") or labels.get("rank")
            taken[metric["name"], labels["run"].replace('"', '\\"'), other] = point["asDouble"]
    moving = ("megahost_last_step_timestamp_seconds", "megahost_time_seconds_total", "megahost_goodput_ratio")
    assert {key: value for key, value in taken.items() if key[0] not in moving} == {
        key: value for key, value in found.items() if math.isfinite(value) and key[0] not in moving}, (taken, found)
    server.shutdown()
    server.server_close()
    sent = relay(endpoint, run)
    assert sent.returncode == 1 and f"otlp_relay: {endpoint} takes no metrics" in sent.stderr, sent
    assert "is no run folder" in relay(endpoint, folder).stderr

    dashboard = json.loads((SOURCE / "docs/grafana.json").read_text())
    asked = {name for panel in dashboard["panels"] for target in panel["targets"]
             for name in re.findall(r"megahost_\w+", target["expr"])}
    assert asked == named, asked ^ named

    assert "is no run folder" in status(folder, code=5)
    assert "two formats" in status(run, "--json", "--prometheus", code=2)
print("status: running, silent, elsewhere, stopped, finished, begun; table, JSON, Prometheus, OpenTelemetry")
