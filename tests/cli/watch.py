#!/usr/bin/env python3
"""`megahost watch`: of a run that has ended, of one that goes on, on a terminal and as pages; its journal and goodput after it
was killed, and in `status` and `compare`."""

import http.client
import json
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import tempfile
import time

from on_terminal import OnTerminal

PROGRAM = os.environ["MEGAHOST"]
TINY = pathlib.Path(os.environ["MEGAHOST_SOURCE"]) / "tests/cli/tiny.toml"


def megahost(*words, code=0):
    done = subprocess.run([PROGRAM, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == code, done
    return done.stdout


def train(run, *words):
    return [PROGRAM, "run", TINY, "--run-dir", run, "--set", "checkpoint.interval=20", "--set", "train.eval_interval=20", "--set",
            "train.eval_iters=1", "--set", "log.interval=1000", *words]


def steps(run):
    try:
        return (run / "metrics.jsonl").read_text().count('"losses"')
    except FileNotFoundError:
        return 0


def journal(run):
    return [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]


def goodput(run):
    found = json.loads(megahost("status", run, "--json"))["runs"][0]["goodput"]
    parts = ("useful", "start_up", "restart", "recomputed", "skipped", "data", "saving", "evaluation", "other")
    assert abs(sum(found[part] for part in parts) - found["seconds"]) < 0.05 * found["seconds"] + 0.05, found
    assert abs(found["ratio"] - found["useful"] / found["seconds"]) < 1e-9, found
    return found


def on_terminal(*words, columns, rows):
    """The output of a command to a terminal of that size, until it ends or has drawn twice."""
    command = OnTerminal([PROGRAM, *words], columns, rows)
    while command.written.count(b"\x1b[H") < 3 and command.read():
        pass
    command.process.send_signal(signal.SIGINT)
    command.process.wait()
    return command.written.decode(errors="replace").replace("\r\n", "\n")  # it may end within a character


def ask(port, request):
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    return answer


def check_pages(run, port):
    def get(path, method="GET"):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type"), answer.read().decode()

    status, kind, page = get("/")
    assert status == 200 and kind == "text/html; charset=utf-8", (status, kind)
    assert page.startswith("<!doctype html>") and page.count("<svg") >= 2 and "started" in page and "goodput" in page, page
    assert 'http-equiv="refresh"' in page and "http://" not in page.replace("http://www.w3.org/", "") and "src=" not in page
    status, kind, metrics = get("/metrics?from=prometheus")
    assert status == 200 and "version=0.0.4" in kind and "megahost_goodput_ratio{" in metrics, metrics
    assert get("/metrics", "HEAD")[::2] == (200, "") and get("/../etc/passwd")[0] == 404 and get("/", "POST")[0] == 405
    # Texts that are no request, ask for too much or come from another site's page.
    assert ask(port, b"") == b"" and ask(port, b"hello\r\n\r\n") == b"" and ask(port, b"GET / HTTP/1.1\r\nX: " + b"x" * 9000) == b""
    assert ask(port, b"GET / FTP/1.0\r\n\r\n") == b"" and ask(port, b"GET\r\n\r\n") == b""
    assert b" 403 " in ask(port, b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n")
    assert b" 403 " in ask(port, b"GET / HTTP/1.1\r\nHOST:evil.example:80\r\n\r\n")
    assert b" 200 " in ask(port, b"GET / HTTP/1.1\r\nHost: LOCALHOST:%d\r\n\r\n" % port)
    assert b" 200 " in ask(port, b"GET / HTTP/1.0\r\n\r\n")
    gone = socket.create_connection(("127.0.0.1", port))  # a reader that has gone when the answer comes
    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    gone.sendall(b"GET / HTTP/1.1\r\n\r\n")
    gone.close()
    assert get("/")[0] == 200
    taken = megahost("watch", run, "--http", port, code=2)
    assert f"cannot listen at 127.0.0.1:{port}: Address already in use" in taken, taken


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    run = folder / "run"
    process = subprocess.Popen(train(run, "--set", "train.iters=1000000"), stdout=subprocess.DEVNULL)
    try:
        while steps(run) < 30:
            assert process.poll() is None
            time.sleep(0.02)
        drawn = on_terminal("watch", run, "--every", "1", columns=90, rows=40)
        first, second = drawn.split("\x1b[H")[1:3]
        assert "running" in first and "lm loss" in first and "started after" in first and "goodput" in first, drawn
        assert first.count("\n") <= 40 and first != second, drawn  # it fits, and goes on
        small = on_terminal("watch", run, "--every", "1", columns=60, rows=12)
        assert "running" in small and "training" not in small, small

        server = subprocess.Popen([PROGRAM, "watch", run, "--http", "0"], stdout=subprocess.PIPE, text=True)
        try:
            said = server.stdout.readline()
            check_pages(run, int(re.match(r"http://127\.0\.0\.1:(\d+)/ shows ", said)[1]))
        finally:
            server.kill()
            server.wait()
    finally:
        process.kill()
        process.wait()
    killed_at = time.time()
    assert "stopped" in megahost("watch", run)
    last = steps(run)
    time.sleep(1)
    megahost(*train(run, "--resume", "--set", f"train.iters={last + 40}")[1:])

    events = journal(run)
    assert [event["event"] for event in events if event["event"] in ("start", "end")] == ["start", "start", "end"], events
    start = [event for event in events if event["event"] == "start"][1]
    assert start["step"] % 20 == 0 and start["lost_steps"] == last - start["step"], start
    assert abs(start["alive"] - killed_at) < 5 and start["time"] - start["seconds"] > killed_at, start
    found = goodput(run)
    assert found["starts"] == 2 and found["restart"] >= 1 and found["start_up"] > 0 and found["saving"] > 0, found
    assert found["recomputed"] > 0 or start["lost_steps"] == 0, found
    view = megahost("watch", run)
    assert "finished" in view and "started at step" in view and "ended at step" in view and "2 starts" in view, view
    assert "goodput" in megahost("status", run)
    log = (run / "log.txt").read_text()
    assert re.search(r"^goodput \d+\.\d% of .*% restarts.*; 2 starts$", log, re.M), log

    # An old run without a journal has no goodput; all else is there.
    other = folder / "other"
    subprocess.run(train(other), check=True, stdout=subprocess.DEVNULL)
    assert re.search(r"^goodput\n  .*other +\d+\.\d% of ", megahost("compare", other, run), re.M)
    (other / "journal.jsonl").unlink()
    assert "goodput" not in megahost("watch", other) and "goodput" in megahost("compare", other, run)
    assert json.loads(megahost("compare", other, run, "--json"))["runs"][0]["goodput"] is None
    (other / "journal.jsonl").write_text('{"event": "start", "time": 1}\n{"event": [], "time": 2}\nnothing\n')
    (other / "ranks.json").write_text('{"ranks": 3}')
    assert "finished" in megahost("watch", other)

    assert "is no run folder" in megahost("watch", folder / "none", code=5)
    for place in ("80x", "-1", "65536", "host:80", ":80", "1.2.3.4.5:80", "127.0.0.1:"):
        assert f"--http {place} is no place to listen at" in megahost("watch", run, f"--http={place}", code=2), place
