#!/usr/bin/env python3
"""The keys that `megahost help terms` names are keys of a recipe, and the values that it gives them are among their choices."""

import json
import os
import re
import subprocess


def megahost(*words):
    return subprocess.run([os.environ["MEGAHOST"], *words], check=True, capture_output=True, text=True).stdout


definitions = json.loads(megahost("recipe", "schema"))["definitions"]
terms = re.findall(r"^- \*\*(.*?)\*\*: (.*)$", megahost("help", "terms"), re.MULTILINE)
assert len(terms) >= 30, terms
for name, text in terms:
    told = re.findall(r"`([a-z0-9_]+)\.([a-z0-9_]+)(?: = (.*?))?`", text)
    assert told or "No key sets it" in text, f"{name} names no key: {text}"
    for section, key, value in told:
        tables = [table for title, table in definitions.items() if title == section or title.startswith(section + ".")]
        fields = [table["properties"][key] for table in tables if key in table.get("properties", {})]
        assert fields, f"{name}: there is no key {section}.{key}"
        if value.startswith('"'):
            assert value in json.dumps(fields), f"{name}: {section}.{key} is never {value}"
# A plugin or a key of the term's name is shown, too.
for name, word in (("cosine", "cosine (lr_schedule)"), ("zero", "parallel.zero"), ("wsd", "wsd (lr_schedule)")):
    text = megahost("help", name)
    assert terms and word in text and text.count("\n\n"), text
print(len(terms), "terms")
