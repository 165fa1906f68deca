"""No two types have one name: one that a header of the core or of a plugin declares, class or alias, is nowhere else the
name of another, whatever its namespace. A strategy's `Keys` are what its plugin is made from."""

import collections
import pathlib
import re
import sys

TYPE = re.compile(r"^(template\s*<[^\n]*>\s*\n)?(?:enum class|enum|struct|class)\s+(?:MH_API\s+)?([A-Z]\w*)\s*(?:final\s*)?(?::[^:][^;{]*)?\{",
                  re.MULTILINE)
ALIAS = re.compile(r"^(template\s*<[^\n]*>\s*\n)?using\s+([A-Z]\w*)\s*=", re.MULTILINE)
HEADERS = (".hpp", ".cuh")


def names(text):
    """The types that a file declares in a namespace, without specialisations."""
    return {name for form in (TYPE, ALIAS) for template, name in form.findall(text)
            if template.replace(" ", "").strip() != "template<>"}


assert names("class A : public B {\n};\nusing C = int;\n  struct Nested {};\ntemplate <>\nstruct D<int> {};") == {"A", "C"}

root = pathlib.Path(sys.argv[1])
places = collections.defaultdict(list)
for file in sorted(path for folder in ("core", "plugins") for path in (root / folder).rglob("*.*")):
    if file.suffix in (*HEADERS, ".cpp", ".cu"):
        for name in names(file.read_text()):
            places[name].append(file.relative_to(root))

assert len(places) > 900, f"only {len(places)} types found"
wrong = [f"{name}: {', '.join(map(str, files))}" for name, files in sorted(places.items())
         if name != "Keys" and len(files) > 1 and any(file.suffix in HEADERS for file in files)]
sys.exit("\n".join(wrong) or 0)
