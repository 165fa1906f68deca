#!/usr/bin/env python3
"""Sends the metrics of runs to a collector of OpenTelemetry, as `megahost status --prometheus` says them. Optional: training
does without Python and knows nothing of it. Start it where the run folders are seen.

usage: otlp_relay.py RUN... [--endpoint http://localhost:4318] [--every SECONDS] [--once] [--megahost PROGRAM]

Gauges and cumulative sums keep their names (docs/clusters.md lists them); labels become attributes.
Source: OpenTelemetry Protocol 1.x over HTTP with JSON, POST /v1/metrics.
"""

import argparse
import json
import math
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request

SAMPLE = re.compile(r"(\w+)\{(.*)\} (\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def families(text):
    """(name, type, help, [(labels, value)]) of each family of Prometheus's text format."""
    helps, found = {}, {}
    for line in text.splitlines():
        if line.startswith("# HELP "):
            _, _, name, words = line.split(" ", 3)
            helps[name] = words
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            found[name] = (name, kind, helps.get(name, ""), [])
        elif sample := SAMPLE.fullmatch(line):
            labels = {key: re.sub(r"\\(.)", lambda c: "\n" if c[1] == "n" else c[1], value)
                      for key, value in LABEL.findall(sample[2])}
            found[sample[1]][3].append((labels, float(sample[3])))
    return found.values()


def request(text, started, now):
    """The body of POST /v1/metrics; times in nanoseconds since 1970."""
    def points(samples, more):
        return [{"timeUnixNano": str(now), "asDouble": value, **more,
                 "attributes": [{"key": key, "value": {"stringValue": label}} for key, label in labels.items()]}
                for labels, value in samples if math.isfinite(value)]

    metrics = []
    for name, kind, words, samples in families(text):
        if kind == "counter":
            data = {"sum": {"isMonotonic": True, "aggregationTemporality": 2,  # cumulative
                            "dataPoints": points(samples, {"startTimeUnixNano": str(started)})}}
        else:
            data = {"gauge": {"dataPoints": points(samples, {})}}
        metrics.append({"name": name, "description": words, **data})
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "megahost"}}]}
    return {"resourceMetrics": [{"resource": resource,
                                 "scopeMetrics": [{"scope": {"name": "megahost"}, "metrics": metrics}]}]}


def main():
    parser = argparse.ArgumentParser(description="Sends the metrics of runs to a collector of OpenTelemetry (OTLP over HTTP).")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders")
    parser.add_argument("--endpoint", default="http://localhost:4318", help="the collector (http://localhost:4318)")
    parser.add_argument("--every", type=float, default=15, metavar="SECONDS", help="between two readings (15)")
    parser.add_argument("--once", action="store_true", help="sends once and ends")
    parser.add_argument("--megahost", default="megahost", metavar="PROGRAM", help="the program (megahost)")
    asked = parser.parse_args()
    started = time.time_ns()
    while True:
        said = subprocess.run([asked.megahost, "status", *asked.runs, "--prometheus"], stdout=subprocess.PIPE, text=True)
        if said.returncode != 0:
            sys.exit(said.returncode)  # it has said why
        body = json.dumps(request(said.stdout, started, time.time_ns())).encode()
        try:
            urllib.request.urlopen(urllib.request.Request(
                asked.endpoint.rstrip("/") + "/v1/metrics", body, {"Content-Type": "application/json"}), timeout=10).close()
        except (urllib.error.URLError, OSError) as error:  # the next reading has all that this one had
            print(f"otlp_relay: {asked.endpoint} takes no metrics ({error}): name a collector's OTLP port for HTTP with "
                  "--endpoint, 4318 unless it was told another", file=sys.stderr)
            if asked.once:
                sys.exit(1)
        if asked.once:
            return
        time.sleep(asked.every)


if __name__ == "__main__":
    main()
