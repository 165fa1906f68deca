"""Whole runs on a GPU: evaluation, checkpoints and resume, generation, evaluation of weights, documents, offload.

usage: runs.py
"""

import pathlib
import re
import tempfile

import empty_gpu
import small

problems = []


def check(what, holds, result):
    if not holds:
        problems.append(f"{what}: {result.command}\n{result.out[-2000:]}{result.err[-2000:]}")


def train(folder, settings, *words):
    return empty_gpu.run("run", small.write(folder), *empty_gpu.sets(settings), "--run-dir", folder / "run", *words)


def whole_run(folder):
    settings = {"train.iters": 3, "train.eval_interval": 1, "train.eval_iters": 1, "checkpoint.interval": 1}
    made = train(folder, settings)
    check("three checkpoints", made.out.count("| saved in") == 3, made)
    check("an evaluation after each step", made.out.count("validation") >= 3, made)
    resumed = train(folder, dict(settings, **{"train.iters": 5}), "--resume")
    check("the run goes on after step 3", re.search(r"step +4\b", resumed.out) is not None, resumed)
    check("and makes none of the steps before", re.search(r"step +3/", resumed.out) is None, resumed)
    written = empty_gpu.run("generate", folder / "run", "--prompt", "int main(", "--tokens", 5)
    check("text that goes on", written.out.startswith("int main("), written)
    check("a model that ran on the GPU", written.counts.all("gemm") > 0, written)


def documents(folder):
    text = folder / "text.txt"
    text.write_text("one document.\n" * 400)
    empty_gpu.run("data", "prepare", text, "--output", folder / "corpus", "--tokenizer", "byte")
    settings = {"data.use": "indexed", "data.paths": [str(folder / "corpus_text_document")], "data.reset_positions": True,
                "data.reset_attention": True}
    made = train(folder, settings)
    check("a loss", "loss" in made.out, made)


def offload(folder):
    made = train(folder, {"optimizer.offload": True})
    check("weights come from the host and go there",
          made.counts.all("copy", "H2D") > 0 and made.counts.all("copy", "D2H") > 0, made)


if __name__ == "__main__":
    empty_gpu.require()
    for work in (whole_run, documents, offload):
        with tempfile.TemporaryDirectory() as folder:
            work(pathlib.Path(folder))
    raise SystemExit("\n".join(problems) or 0)
