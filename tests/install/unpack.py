#!/usr/bin/env python3
"""megahost-unpack takes archives of a plugin's folder, and refuses with a sentence whatever is damaged, too large, or would
write elsewhere.

usage: unpack.py PROGRAM
"""

import io
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile

PROGRAM = sys.argv[1]
work = pathlib.Path(tempfile.mkdtemp())
LIMIT = 64 << 20


def unpack(archive, name):
    """Unpacks into a folder of its own; returns the folder, the status and what was said."""
    folder = work / "unpacked" / name
    folder.mkdir(parents=True)
    done = subprocess.run([PROGRAM, archive, folder], capture_output=True, text=True)
    assert not done.stderr, done.stderr
    return folder, done.returncode, done.stdout


def files_of(folder):
    return {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}


def refused(archive, sentence, hint=""):
    _, status, said = unpack(archive, f"refused-{archive.name}")
    lines = said.splitlines()
    assert status == 2, (archive.name, status, said)
    assert len(lines) == 2 and sentence in lines[0] and str(archive) in lines[0], (archive.name, said)
    assert hint in lines[1] and lines[1], (archive.name, said)


def entry(name, content=b"", type_=tarfile.REGTYPE, mode=0o644, link=""):
    item = tarfile.TarInfo(name)
    item.type, item.mode, item.linkname, item.size = type_, mode, link, len(content)
    return item, content


def tar(name, *entries, mode="w:gz"):
    path = work / name
    with tarfile.open(path, mode) as archive:
        for item, content in entries:
            archive.addfile(item, io.BytesIO(content))
    return path


# Archives that are accepted: each form, folders named or not, executable or not, names in UTF-8.
GOOD = [
    entry("lion/", type_=tarfile.DIRTYPE, mode=0o755),
    entry("lion/meson.build", b"project('lion')\n"),
    entry("./lion/src/deep/löwe.cpp", b"int x;\n"),
    entry("lion/make.sh", b"#!/bin/sh\n", mode=0o755),
    entry("lion/empty"),
]
for form, mode in {"tar": "w", "tar.gz": "w:gz", "tar.xz": "w:xz", "tar.bz2": "w:bz2"}.items():
    folder, status, said = unpack(tar(f"good.{form}", *GOOD, mode=mode), form)
    found = files_of(folder)
    assert status == 0 and not said, (form, said)
    assert set(found) == {"lion/meson.build", "lion/src/deep/löwe.cpp", "lion/make.sh", "lion/empty"}, (form, found)
    assert found["lion/src/deep/löwe.cpp"].read_text() == "int x;\n"
    assert found["lion/make.sh"].stat().st_mode & 0o100 and not found["lion/meson.build"].stat().st_mode & 0o111
with zipfile.ZipFile(work / "good.zip", "w", zipfile.ZIP_DEFLATED) as archive:
    archive.writestr("lion/meson.build", "project('lion')\n")
    archive.writestr("lion/src/lion.cpp", "int x;\n" * 1000)
folder, status, said = unpack(work / "good.zip", "zip")
assert status == 0 and files_of(folder)["lion/src/lion.cpp"].read_text() == "int x;\n" * 1000, said

# Entries that lead out of the folder, or are no file.
OUT = "which leads out of its folder"
refused(tar("up.tar.gz", entry("../stolen", b"x")), OUT, "unpack it yourself")
refused(tar("inner.tar.gz", entry("a/../../stolen", b"x")), OUT)
refused(tar("root.tar.gz", entry("/stolen", b"x")), OUT)
refused(tar("bell.tar.gz", entry("a/\abell", b"x")), OUT)
refused(tar("link.tar.gz", entry("a", type_=tarfile.SYMTYPE, link="/etc")), "holds a link, \"a\"", "unpack it yourself")
refused(tar("hard.tar.gz", entry("b", b"x"), entry("a", type_=tarfile.LNKTYPE, link="b")), "holds a link")
refused(tar("through.tar.gz", entry("a", type_=tarfile.SYMTYPE, link=".."), entry("a/stolen", b"x")), "holds a link")
refused(tar("pipe.tar.gz", entry("a", type_=tarfile.FIFOTYPE)), "neither a file nor a folder")
refused(tar("device.tar.gz", entry("a", type_=tarfile.CHRTYPE)), "neither a file nor a folder")
refused(tar("twice.tar.gz", entry("a", b"x"), entry("./a", b"y")), "holds \"a\" twice")
refused(tar("both.tar.gz", entry("a", b"x"), entry("a/b", b"y")), "both as a file and as a folder")
with zipfile.ZipFile(work / "up.zip", "w") as archive:
    archive.writestr("../stolen", "x")
refused(work / "up.zip", OUT)
assert not list(work.rglob("stolen*"))

# Archives that are too large.
with zipfile.ZipFile(work / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
    archive.writestr("zeros", bytes(LIMIT + 1))
refused(work / "bomb.zip", "holds more than 64 MiB when it is unpacked", "sources alone")
assert sum(path.stat().st_size for path in (work / "unpacked/refused-bomb.zip").iterdir()) <= LIMIT
refused(tar("many.tar.gz", *(entry(f"f{i}") for i in range(10_001))), "holds more than 10000 files")

# Archives that are damaged, or are something else.
whole = (work / "good.tar.gz").read_bytes()
for name, content in {
    "cut.tar.gz": whole[: len(whole) // 2],
    "text.tar.gz": b"not an archive\n" * 100,
    "none.tar.gz": b"",
    "cut.tar": (work / "good.tar").read_bytes()[:700],
    "bits.zip": (work / "good.zip").read_bytes()[:60] + bytes(40) + (work / "good.zip").read_bytes()[100:],
}.items():
    (work / name).write_bytes(content)
refused(work / "cut.tar.gz", "cannot be unpacked: truncated gzip input", ".tar.xz")
refused(work / "text.tar.gz", "cannot be unpacked: Unrecognized archive format")
refused(work / "none.tar.gz", "cannot be unpacked", ".zip")
refused(work / "cut.tar", "is damaged")
refused(work / "bits.zip", "is damaged")
refused(tar("nothing.tar"), "with nothing in it")
refused(work / "missing.tar.gz", "cannot be unpacked")
print("unpacked and refused as they should be")
