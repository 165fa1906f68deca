"""The program in a folder of its own, with one recipe: what the tests of architectures have in common."""

import json
import os
import pathlib
import random
import subprocess
import tempfile


class Trial:
    def __init__(self, name, recipe):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=f"megahost-{name}-"))
        self.recipe = f"{name}.toml"
        (self.folder / self.recipe).write_text(recipe)

    def write_texts(self):
        """Forty files of lines that are drawn from six words."""
        (self.folder / "texts").mkdir()
        words = random.Random(1)
        for i in range(40):
            lines = (" ".join(words.choice(("red", "green", "blue", "tree", "house", "river")) for _ in range(words.randint(2, 9)))
                     for _ in range(30))
            (self.folder / f"texts/{i}.txt").write_text("".join(line + "\n" for line in lines))

    def run(self, *words, sets=(), code=0, fault=""):
        """Runs `megahost WORDS --set ...`; its output."""
        command = [os.environ["MEGAHOST"], *words]
        for one in sets:
            command += ["--set", one]
        result = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, env=os.environ | {"MH_FAULT": fault})
        print(fault, " ".join(words), sets, "\n" + result.stdout + result.stderr, flush=True)
        assert result.returncode == code, result.returncode
        return result.stdout + result.stderr

    def same(self, layouts, *sets, precision="float64"):
        """`megahost check` finds the numbers of one rank under these layouts."""
        text = self.run("check", self.recipe, "--layouts", layouts, "--precision", precision, sets=sets)
        assert "every layout matches the single-rank result" in text
        return text

    def losses(self, run_folder):
        """The losses of each step."""
        lines = (self.folder / run_folder / "metrics.jsonl").read_text().splitlines()
        return [one["losses"] for one in map(json.loads, lines) if "losses" in one]

    def resumed(self):
        """The losses of run `whole`, which run `halves` has, too, though it was stopped after two steps."""
        self.run("run", self.recipe, "--run-dir", "whole")
        self.run("run", self.recipe, "--run-dir", "halves", sets=("train.exit_iters=2",))
        self.run("run", self.recipe, "--run-dir", "halves", "--resume")
        whole, halves = self.losses("whole"), self.losses("halves")
        assert halves == whole, (halves, whole)
        return whole

    def refused(self, *rows):
        """Each row: a key with its value, and what the refusal says."""
        for one, why in rows:
            words = [os.environ["MEGAHOST"], "run", self.recipe, "--run-dir", "wrong", "--set", one]
            result = subprocess.run(words, cwd=self.folder, capture_output=True, text=True)
            assert result.returncode != 0 and why in result.stderr, (one, result.stderr)
