"""The rooms of the core keep their order: what a room includes and what its symbols need is in rooms that its meson.build
names, directly, and it names no other. Rooms can only name those before them, so nothing runs up.
usage: rooms.py SOURCE ROOM=LIBRARY=LINK,LINK..."""

import pathlib
import re
import subprocess
import sys

CORE = pathlib.Path(sys.argv[1]) / "core"
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]core/(\w+)/', re.MULTILINE)
RELATIVE = re.compile(r'^\s*#\s*include\s*["<]\.', re.MULTILINE)
SOURCES = (".cpp", ".hpp", ".cu", ".cuh", ".c", ".cc", ".h", ".inc")


def sources(folder):
    """The sources of a room, or of the public headers."""
    return [path for path in (CORE / folder).rglob("*.*") if path.suffix in SOURCES]


def symbols(library, *options):
    """The names that nm lists of a static library."""
    lines = subprocess.run(["nm", "--format=posix", *options, library], check=True, capture_output=True, text=True).stdout
    return [line.split()[:2] for line in lines.splitlines() if line and not line.endswith(":")]


def included(room):
    """The rooms of the headers that a room's sources include."""
    found = set()
    for path in sources(room):
        found.update(INCLUDE.findall(path.read_text()))
    return found


def owners(rooms):
    """The room that defines each symbol; inline functions and templates, which every room may hold, have no owner."""
    owner = {}
    for room, (library, _) in rooms.items():
        for name, kind in symbols(library, "--defined-only", "--extern-only"):
            if kind in "TDBR":
                owner[name] = room
    return owner


def needs(rooms):
    """The rooms that each room uses, by include or by symbol, with an example."""
    owner = owners(rooms)
    found = {}
    for room, (library, _) in rooms.items():
        uses = {other: "an include" for other in included(room)}
        for name, _ in symbols(library, "--undefined-only"):
            if name in owner:
                uses.setdefault(owner[name], name)
        uses.pop(room, None)
        found[room] = uses
    return found


def faults(rooms, used):
    """Sentences about rooms that use what they do not name, or name what they do not use."""
    for room, (_, links) in rooms.items():
        for other, example in used[room].items():
            if other not in links:
                yield f"core/{room} uses core/{other} ({example}), which core/{room}/meson.build does not name"
        for link in links:
            if link not in used[room]:
                yield f"core/{room}/meson.build names {link}, which core/{room} does not use"


rooms = {}
for argument in sys.argv[2:]:
    room, library, links = argument.split("=")
    rooms[room] = (library, links.split(",") if links else [])
used = needs(rooms)
found = list(faults(rooms, used))
assert not found, "\n".join(found)

# A room answers one question: it stays small enough to be read.
MOST_LINES = 6000
for room in rooms:
    lines = sum(len(path.read_text().splitlines()) for path in sources(room))
    assert lines <= MOST_LINES, f"core/{room} has {lines} lines, expected at most {MOST_LINES}: cut it in two"

folders = {path.name for path in CORE.iterdir() if path.is_dir() and path.name != "include"}
assert folders == set(rooms), folders ^ set(rooms)

for path in sources("."):
    assert not RELATIVE.search(path.read_text()), f"{path} includes a file by its relative place, which hides its room"

# Public headers are below all rooms.
assert not included("include"), included("include")

# The test can fail: a link that is missing is found, be it needed by an include or by a symbol alone.
for room, (library, links) in rooms.items():
    for link in links:
        without = rooms | {room: (library, [other for other in links if other != link])}
        assert len(list(faults(without, used))) == 1, (room, link)
assert any(example != "an include" for uses in used.values() for example in uses.values())
print(f"{len(rooms)} rooms, {sum(len(links) for _, links in rooms.values())} links")
