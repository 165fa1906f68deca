"""corpus_samples.cpp, asked from Python."""

import json
import subprocess


class Ours:
    """The program that prints samples, one case a line."""

    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **case):
        self.process.stdin.write(json.dumps({key: value for key, value in case.items() if value is not None}) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()
