"""Comments are sentences with a subject, or noun phrases that name the thing: none begins with "What ...", "Of ...", "Which ..." or
another word that leaves the subject to the reader, and none has words that only this project uses. Texts that users read, of
options, fields and metrics, do not begin with "of", either.
usage: comments.py SOURCE"""

import pathlib
import re
import sys

FOLDERS = ("core", "plugins", "templates", "tests", "examples", "recipes")
SOURCES = (".cpp", ".hpp", ".h", ".cu", ".cuh", ".py", ".sh", ".build", ".lua", ".toml")
SCRIPTS = ("megahost", ".ci/run")
HASHES = (".py", ".sh", ".build", ".toml", "")  # begin a comment by #
NOT_OURS = ("plugins/devices/pjrt/pjrt_c_api.h",)

# Words that no sentence of a comment begins with, those that no comment begins with, and those that a sentence begins with
# only as a clause, which a comma ends: "Where x is empty, y is."
NEVER = re.compile(r"(?:^|[.!?] )(What|Of|Which|Whose|Who|Whom)\b")
NOT_FIRST = re.compile(r"(That|Those|As|The same (?:of|for|with|if|over|along))\b")
CLAUSE = re.compile(r"(?:^|[.!?] )(Where)\b(?P<rest>[^.!?]*)")
TRAILING = re.compile(r"///< (what|of|that|those|which|whose|who|as|where)\b|\S.*// of\b")
TRAILING_SCRIPT = re.compile(r"\S.*\s(#|--) (of|that|those|which|whose|who) ")
TEXT = re.compile(r'"of [^"]{8,}')
IDIOM = re.compile(r"\b(nobody|somebody|dealt out|held against|holds? [^.,;]{,20} against|beside|for ever|soft max)\b", re.IGNORECASE)


def comments(path, text):
    """The comments of a source: (line number, text) of each paragraph, with the first one of a Python docstring."""
    line_of = re.compile(r"\s*# ?(?!!)(.*)" if path.suffix in HASHES else
                         r"\s*--(?!\[|-) ?(.*)" if path.suffix == ".lua" else r"\s*(?:///?(?!<|/)|/\*+(?![^/]*=\*/)) ?(.*?)(?:\*/)?")
    start, lines = 0, []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        comment = line_of.fullmatch(line)
        if comment and comment[1].strip():
            begun = re.sub(r"^(?:- |[@\\]\w+ )", "", comment[1].strip())
            start, lines = start if lines else number, [*lines, begun]
        elif lines:
            yield start, " ".join(lines)
            lines = []
        docstring = re.match(r'\s*"""(\S.*)', line) if path.suffix == ".py" else None
        if docstring:
            yield number, docstring[1]


def faults(path, text):
    """The faults of a source's comments: (line number, words)."""
    for number, words in comments(path, text):
        found = NEVER.search(words) or NOT_FIRST.match(words)
        clause = next((clause for clause in CLAUSE.finditer(words) if "," not in clause["rest"]), None)
        if found or clause:
            start = (found or clause).start(1)
            yield number, f'"{words[start:start + 40]} ..." is no sentence: name what it is about'
        if IDIOM.search(words):
            yield number, f'"{IDIOM.search(words)[0]}" is no word of the field'
    before = ""
    for number, line in enumerate(text.splitlines(), 1):
        code = path.suffix not in (*HASHES, ".lua")
        if path.suffix in (".lua", ".toml") and TRAILING_SCRIPT.search(line):
            yield number, f'a comment names nothing: "{line.strip()}"'
        if code and not line.lstrip().startswith("//") and TRAILING.search(line):
            yield number, f'a comment names nothing: "{line.strip()}"'
        goes_on = before.endswith('"') and line.lstrip().startswith('"')
        if code and path.parts[0] != "tests" and not goes_on and TEXT.search(line):
            yield number, f"a text names nothing: {TEXT.search(line)[0]}"
        before = line.rstrip()


def check_the_check():
    """Faults that it has to find, and comments that are none."""
    for name, text in (("a.cpp", "/// What a run wrote.\nint x;"), ("a.cpp", "int a; ///< of a start"), ("a.hpp", "  // Of the rest."),
                       ("a.hpp", "/// A file. Which of them\n/// is read.\n"), ("a.cpp", "// Those of a group."),
                       ("a.cpp", "/// Where checkpoints lie."), ("a.cpp", "// A rank that nobody\n// waits for."),
                       ("a.py", '    """What is left."""'), ("a.cpp", "int a; // of a start"),
                       ("core/a.cpp", 'f.add("seed", "of the order, unless given");'), ("a.py", "# As the other."), ("a.lua", "layers = 2, -- of the decoder"),
                       ("a.hpp", "/* Of the rest. */"), ("a.hpp", "/// - of the run".replace("of", "Of")), ("a.hpp", "/// @brief Of the rest."),
                       ("a.hpp", "/// The same of a tensor."), ("a.toml", "# Of the decoder.\nlayers = 2"), ("megahost", "# What is built."), ("meson.build", "# What is built.")):
        assert list(faults(pathlib.Path(name), text)), f"{name} {text!r} passes"
    for name, text in (("a.cpp", "/// The files of a run. Where it has none, it\n/// is empty."), ("a.cpp", "int a; // what it is"),
                       ("a.hpp", "/// A file\n/// Of which nothing is read."), ("a.py", 'text = "What a run wrote"'),
                       ("a.sh", "#!/bin/sh\n# Builds.\n"), ("a.lua", "layers = 2, -- the decoder's"), ("a.hpp", "int a; ///< the start of it"),
                       ("a.cpp", "// a comment that goes on\n// of itself"), ("core/a.cpp", '"the seed "\n"of the order"')):
        assert not list(faults(pathlib.Path(name), text)), f"{name} {text!r} fails"


def main():
    check_the_check()
    root = pathlib.Path(sys.argv[1])
    wrong, count = [], 0
    sources = [path for folder in FOLDERS for path in (root / folder).rglob("*") if path.suffix in SOURCES]
    for path in sorted([*sources, *(root / name for name in SCRIPTS)]):
        name = str(path.relative_to(root))
        if name not in NOT_OURS and path != pathlib.Path(__file__).resolve():
            count += 1
            wrong += [f"{name}:{number}: {fault}" for number, fault in faults(pathlib.Path(name), path.read_text(errors="replace"))]
    for page in sorted([*root.glob("*.md"), *root.glob("docs/**/*.md")]):
        for number, line in enumerate(page.read_text().splitlines(), 1):
            if IDIOM.search(line):
                wrong.append(f'{page.relative_to(root)}:{number}: "{IDIOM.search(line)[0]}" is no word of the field')
    print("\n".join(wrong) or f"{count} sources, whose comments have subjects")
    return 1 if wrong or count < 1000 else 0


sys.exit(main())
