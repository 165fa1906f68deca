#!/usr/bin/env python3
"""Texts that a Debian or Ubuntu has, as JSON lines with one document each: code, Python's own library; or prose, the
licenses of what is installed.
usage: texts.py code|prose > FILE.jsonl"""

import json
import pathlib
import sys
import sysconfig

PLACES = {"code": (sysconfig.get_path("stdlib"), "*.py"), "prose": ("/usr/share/doc", "*/copyright")}

if len(sys.argv) != 2 or sys.argv[1] not in PLACES:
    sys.exit(__doc__)
folder, names = PLACES[sys.argv[1]]
for file in sorted(pathlib.Path(folder).glob(names)):
    text = file.read_text(errors="replace")
    print(json.dumps({"text": text, "file": str(file)}))
