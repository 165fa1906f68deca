"""Commands whose output is a terminal."""

import fcntl
import os
import pty
import struct
import subprocess
import termios
import threading


class OnTerminal:
    """A command whose output and errors go to a terminal. Our side of it stays open until all is read: what a terminal
    still holds when the last that writes to it closes it may be lost."""

    def __init__(self, words, columns=120, rows=24, env=None, **options):
        self.ours, self.its = pty.openpty()
        fcntl.ioctl(self.its, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process = subprocess.Popen(list(map(str, words)), stdout=self.its, stderr=self.its,
                                        env=os.environ | {"TERM": "xterm"} | (env or {}), **options)
        self.written = b""
        threading.Thread(target=self.mark_end, daemon=True).start()

    def mark_end(self):
        self.process.wait()
        os.write(self.its, b"\0")  # behind all that the command wrote

    def read(self):
        """Whether there may be more."""
        piece = os.read(self.ours, 65536)
        self.written += piece.rstrip(b"\0")
        return not piece.endswith(b"\0")

    def output(self):
        """All that it writes, as text, and its exit status."""
        while self.read():
            pass
        return self.written.decode().replace("\r\n", "\n"), self.process.wait()
