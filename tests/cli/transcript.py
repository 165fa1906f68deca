#!/usr/bin/env python3
"""Runs the commands of a transcript and compares what they print.

usage: transcript.py FILE

A line "$ COMMAND" runs COMMAND in a shell, in a folder of its own where `megahost` is the program under test and
`recipes`, `fixtures` and `tiny.toml` are links to the source tree's. The lines up to the next command are what it prints on
both outputs, where "." stands for that folder and "~" for HOME, which is empty; "..." stands for anything, and a line "..."
for any lines. "[2]" at the end is the exit status, 0 if there is none. Of a Markdown file only the blocks fenced as
"console" count, the quickstart is run for 10 steps, runs of a few steps evaluate one batch, a block fenced as
"LANGUAGE file=NAME" writes that file, and one fenced as "diff" changes files.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile


def read(file):
    """Lists (line number, command, expected text, expected status)."""
    cases = []
    markdown = file.suffix == ".md"
    inside = not markdown
    block = None  # the lines of a file or a diff
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if markdown and line.startswith("```"):
            inside = line == "```console"
            written = re.fullmatch(r"```\w+ file=(\S+)", line)
            block = [] if written or line == "```diff" else None
            if block is not None:
                cases.append([number, (written[1] if written else None, block), [], 0])
        elif block is not None:
            block.append(line + "\n")
        elif not inside:
            continue
        elif line.startswith("$ "):
            cases.append([number, command(line[2:], markdown), [], 0])
        elif cases and re.fullmatch(r"\[\d+\]", line):
            cases[-1][3] = int(line[1:-1])
        elif cases:
            cases[-1][2].append(line)
    return [(number, command, "\n".join(lines).rstrip("\n"), status) for number, command, lines, status in cases]


def command(line, markdown):
    if markdown:
        line = re.sub(r"^\./megahost ", "megahost ", line)
        if line == "megahost run recipes/quickstart.lua":
            line += " --set train.iters=10"
        if re.fullmatch(r"megahost run recipes/[^|;&#>]* train\.iters=\d[^|;&#>]*", line):
            line += " --set train.eval_iters=1"
    return line


def write(folder, name, lines):
    """Writes a file, or applies a diff; says what went wrong."""
    if name:
        pathlib.Path(folder, name).write_text("".join(lines))
        return ""
    result = subprocess.run(["patch", "-p0", "--no-backup-if-mismatch"], cwd=folder, input="".join(lines), text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return result.stdout if result.returncode else ""


def matches(expected, printed):
    pattern = re.escape("\n" + expected + "\n").replace(re.escape("\n...\n"), r"\n(?:.*\n)*?")
    return re.fullmatch(pattern.replace(re.escape("..."), ".*"), "\n" + printed + "\n") is not None


def main():
    file = pathlib.Path(sys.argv[1]).resolve()
    source = pathlib.Path(os.environ["MEGAHOST_SOURCE"])
    environment = os.environ | {"NO_COLOR": "1"}
    environment["PATH"] = str(pathlib.Path(os.environ["MEGAHOST"]).parent) + ":" + environment["PATH"]
    for name in "MEGAHOST_LAUNCHER", "XDG_DATA_HOME":  # what a user has, and a transcript does not show
        environment.pop(name, None)
    failed = 0
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as home:
        environment["HOME"] = home
        pathlib.Path(folder, "recipes").symlink_to(source / "recipes")
        pathlib.Path(folder, "fixtures").symlink_to(os.environ["MEGAHOST_FIXTURES"])
        pathlib.Path(folder, "tiny.toml").symlink_to(source / "tests/cli/tiny.toml")
        for number, command, expected, status in read(file):
            if isinstance(command, tuple):
                trouble = write(folder, *command)
                failed += bool(trouble)
                print(f"{file.name}:{number}: {trouble}" if trouble else "", end="")
                continue
            result = subprocess.run(["sh", "-c", command], cwd=folder, env=environment, text=True,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            printed = result.stdout.rstrip("\n").replace(folder, ".").replace(home, "~")
            if matches(expected, printed) and result.returncode == status:
                continue
            failed += 1
            print(f"{file.name}:{number}: $ {command}\nexpected, status {status}:\n{expected}\n"
                  f"printed, status {result.returncode}:\n{printed}\n")
    sys.exit(failed and f"{failed} commands differ")


main()
