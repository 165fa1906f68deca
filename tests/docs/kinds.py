#!/usr/bin/env python3
"""The table of docs/plugins.md names the parts of each kind that are in this tree, all of them and no others."""

import json
import os
import pathlib
import re
import subprocess
import sys

page = (pathlib.Path(os.environ["MEGAHOST_SOURCE"]) / "docs/plugins.md").read_text()
listed = subprocess.run([os.environ["MEGAHOST"], "plugins", "--json"], capture_output=True, text=True, check=True).stdout
there = {}
for part in json.loads(listed)["plugins"]:
    there.setdefault(part["kind"], set()).add(part["name"])

rows = re.findall(r"^\| \[(\w+)\]\(\S+\) \| .* \| (.*) \|$", page, re.MULTILINE)
wrong = []
for kind, names in rows:
    named = set(re.findall(r"`([^`]+)`", names))
    if kind != "launcher" and named != there.get(kind):  # launchers of the environment are no plugins
        wrong.append(f"{kind}: the page names {sorted(named)}, megahost plugins {sorted(there.get(kind, []))}")
if {kind for kind, _ in rows} - {"launcher"} != there.keys():
    wrong.append(f"the page has rows for {[kind for kind, _ in rows]}, megahost plugins for {sorted(there)}")
sys.exit("\n".join(wrong) or 0)
