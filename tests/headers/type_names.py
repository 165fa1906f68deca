"""No two types of the core and the plugins have one name, whatever their namespaces and files. An alias that only one file
sees may stand in several. A strategy's `Keys` are what its plugin is made from."""

import collections
import pathlib
import re
import sys

TYPE = re.compile(r"^(template\s*<[^\n]*>\s*\n)?(?:enum class|enum|struct|class|union)\s+(?:\[\[[^\]]*\]\]\s*|MH_API\s+)*([A-Z]\w*)\s*(?:final\s*)?(?::[^:][^;{]*)?\{",
                  re.MULTILINE)
ALIAS = re.compile(r"^(template\s*<[^\n]*>\s*\n)?using\s+([A-Z]\w*)\s*=", re.MULTILINE)
HEADERS = (".hpp", ".cuh")


def names(form, text):
    """The types that a file declares in this form in a namespace, without specialisations."""
    return {name for template, name in form.findall(text) if template.replace(" ", "").strip() != "template<>"}


example = "class [[nodiscard]] MH_API A : public B {\n};\nunion E {\n};\nusing C = int;\n  struct Nested {};\ntemplate <>\nstruct D<int> {};"
assert names(TYPE, example) == {"A", "E"} and names(ALIAS, example) == {"C"}

root = pathlib.Path(sys.argv[1])
places = collections.defaultdict(list)
seen = set()  # by more than one file, or a type of its own
for file in sorted(path for folder in ("core", "plugins") for path in (root / folder).rglob("*.*")):
    if file.suffix in (*HEADERS, ".cpp", ".cu"):
        types, aliases = (names(form, file.read_text()) for form in (TYPE, ALIAS))
        for name in types | aliases:
            places[name].append(file.relative_to(root))
        seen |= types | aliases if file.suffix in HEADERS else types

assert len(places) > 900, f"only {len(places)} types found"
wrong = [f"{name}: {', '.join(map(str, files))}" for name, files in sorted(places.items())
         if name != "Keys" and len(files) > 1 and name in seen]
sys.exit("\n".join(wrong) or 0)
