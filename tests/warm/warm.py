#!/usr/bin/env python3
"""Runs a test whose starts of the program find LibTorch loaded: each is a copy of one process that has loaded it, and goes
on with the program's own main. Ranks that it starts are copies, too, and processes of their own: a test that stops or kills
one starts $MEGAHOST_WARM_PROGRAM.

usage: warm.py SERVER CLIENT COMMAND...   SERVER is preloaded into $MEGAHOST; COMMAND sees CLIENT as $MEGAHOST.
       warm.py - - COMMAND...             runs it as it is: a sanitizer wants to be the first library
"""

import os
import pathlib
import socket
import subprocess
import sys
import tempfile


def main():
    command = sys.argv[3:]
    if sys.argv[1] == "-":
        os.execvp(command[0], command)
    server, client = map(os.path.abspath, sys.argv[1:3])
    program = os.environ["MEGAHOST"]
    with tempfile.TemporaryDirectory(prefix="warm-") as folder, socket.socket(socket.AF_UNIX) as listening:
        name = str(pathlib.Path(folder) / "starts")
        (pathlib.Path(folder) / "megahost").symlink_to(client)
        listening.bind(name)
        listening.listen(64)
        running = subprocess.Popen(
            [program], stdin=subprocess.PIPE, pass_fds=[listening.fileno()],
            env=os.environ | {"LD_PRELOAD": server, "MEGAHOST_WARM_LISTENING": str(listening.fileno())})
        listening.close()
        warm = {"MEGAHOST": f"{folder}/megahost", "MEGAHOST_WARM": name, "MEGAHOST_WARM_PROGRAM": program,
                "PATH": f"{folder}:{os.environ['PATH']}"}
        status = subprocess.call(command, env=os.environ | warm)
        running.stdin.close()
        failed = running.wait()
    sys.exit(status or failed)


main()
