"""No two types have one name: those that headers of the core and of plugins declare, whatever their namespace, and no source file
names one as the SDK does. A strategy's `Keys` are what its plugin is made from."""

import collections
import pathlib
import re
import sys

TYPE = re.compile(r"^(template\s*<[^\n]*>\s*\n)?(?:enum class|enum|struct|class)\s+(?:MH_API\s+)?([A-Z]\w*)\s*(?:final\s*)?(?::[^:][^;{]*)?\{",
                  re.MULTILINE)

root = pathlib.Path(sys.argv[1])
places = collections.defaultdict(list)
for file in sorted(path for folder in ("core", "plugins") for path in (root / folder).rglob("*.*")):
    if file.suffix in (".hpp", ".cpp", ".cuh", ".cu"):
        for template, name in TYPE.findall(file.read_text()):
            if template.replace(" ", "").strip() != "template<>":
                places[name].append(file.relative_to(root))

assert len(places) > 800, f"only {len(places)} types found"
wrong = []
for name, files in sorted(places.items()):
    headers = [file for file in files if file.suffix in (".hpp", ".cuh")]
    sdk = [file for file in headers if "include" in file.parts]
    if name != "Keys" and (len(headers) > 1 or (sdk and len(files) > 1)):
        wrong.append(f"{name}: {', '.join(map(str, files))}")
sys.exit("\n".join(wrong) or 0)
