"""Tests that open a terminal are started by with_terminal.sh, which skips them where there is none.
usage: terminals.py SOURCE"""

import pathlib
import re
import sys

OPENS = re.compile(r"\bOnTerminal\(|\bpty\.(fork|openpty)|\b(posix_openpt|openpty|forkpty)\(")
HELPERS = ("terminals.py", "on_terminal.py")


def main():
    wrong, count = [], 0
    for file in sorted(pathlib.Path(sys.argv[1], "tests").rglob("*.*")):
        if file.suffix not in (".py", ".cpp") or file.name in HELPERS or not OPENS.search(file.read_text()):
            continue
        count += 1
        named = re.compile(rf"^test\('[^\n]*with_terminal[^\n]*({file.name}|'-tc=on a {file.stem})", re.MULTILINE)
        if not named.search((file.parent / "meson.build").read_text()):
            wrong.append(f"{file}: no test of its folder starts it by with_terminal")
    print("\n".join(wrong) or f"{count} files open a terminal")
    sys.exit(bool(wrong) or not count)


main()
