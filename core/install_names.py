"""install_names.py SOURCE BUILD PATTERN...: run by "meson install"; the patterns name programs and libraries in the prefix.

Assertions name their source files, in unity builds with the whole path of the clone. What is
installed gets another of the same length in its place.
"""

import os
import pathlib
import shutil
import sys

source, build, *patterns = sys.argv[1:]
prefix = pathlib.Path(os.environ["MESON_INSTALL_DESTDIR_PREFIX"])


def of_length(count):
    """A name of a folder with its slash: "megahost/././"."""
    name = b"megahost" if count > 9 else b"."
    return (name + b"/" + b"./" * count)[: count - 1] + b"/"


clones = [os.fsencode(os.path.join(build, os.path.relpath(source, build), "")), os.fsencode(os.path.join(source, ""))]
for pattern in patterns:
    for path in prefix.glob(pattern):
        content = path.read_bytes()
        if not any(clone in content for clone in clones):
            continue
        for clone in clones:
            content = content.replace(clone, of_length(len(clone)))
        other = path.with_name(path.name + ".new")
        other.write_bytes(content)
        shutil.copystat(path, other)
        os.replace(other, path)
