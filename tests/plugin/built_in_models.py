#!/usr/bin/env python3
"""Each model that megahost brings has one name for each weight at Hugging Face, and a config.json that is read and written."""

import os
import pathlib
import subprocess
import sys

failed = 0
for plugin in sorted(pathlib.Path(os.environ["MEGAHOST_PLUGIN_PATH"]).glob("models-*.so")):
    result = subprocess.run([os.environ["MEGAHOST"], "plugins", "check", plugin, "--include", "hugging-face-names",
                             "--include", "hugging-face-config"], capture_output=True, text=True)
    good = result.returncode == 0 and "2 passed, 0 failed" in result.stdout
    print(plugin.name, "good" if good else result.stdout + result.stderr)
    failed += not good
sys.exit(failed and f"{failed} plugins fail")
