"""The work that a step gives a GPU, compared with ratchets.toml: figures may only go down.

A figure that grew fails; one that shrank fails, too, and asks to lower the table: `ratchets.py --update` writes what is
measured. Each figure is the difference of runs that differ in one thing: in microbatches, steps or layers.

usage: ratchets.py [--update] [NAME...]
"""

import os
import pathlib
import re
import sys
import tempfile
import tomllib

import empty_gpu

NCCL = pathlib.Path(os.environ["MEGAHOST"]).with_name("libmegahost-nccl.so")  # ranks of GPUs need it
TABLE = pathlib.Path(__file__).with_name("ratchets.toml")

MODEL = {
    "device": "cuda", "precision": "bf16", "model.use": "llama", "model.layers": 1, "model.hidden": 256, "model.heads": 4,
    "model.seq_length": 256, "data.use": "mock", "tokenizer.use": "null", "tokenizer.vocab": 1003, "batch.global": 1,
    "batch.micro": 1, "train.iters": 2, "log.interval": 1, "log.tensorboard": False, "checkpoint.save_at_end": False,
}
# Tensors of some GB. Memory of the stand-ins is never touched.
LARGE = {"model.hidden": 2048, "model.heads": 16, "model.seq_length": 2048, "batch.micro": 4, "batch.global": 4}
CASES = {
    "llama": {},
    "gpt": {"model.use": "gpt"},
    "mixture": {"model.use": "moe", "model.experts": 8, "model.experts_per_token": 2},
    "fp8": {"precision": "fp8"},
    "stochastic rounding": {"optimizer.state_dtype": "bf16", "optimizer.stochastic_rounding": True,
                            "optimizer.master_weights": False},
    "dropout": {"model.use": "gpt", "model.dropout": 0.1, "model.attention_dropout": 0.1},
    "windows": {"model.window": 64},
    "full recompute": {"recompute.use": "full"},
    "documents": {},
    "context": {"parallel.context": 2},
}


class Case:
    def __init__(self, name, folder):
        self.name, self.folder, self.number = name, folder, 0
        settings = MODEL | CASES[name] | (documents(folder) if name == "documents" else {})
        self.settings = {key: value for key, value in settings.items() if value is not None}

    def run(self, steps, microbatches, layers, more=()):
        """A whole run, and its counts; with several ranks those of one."""
        recipe = self.folder / "recipe.toml"
        recipe.write_text('name = "ratchet"\n')
        ranks = self.settings.get("parallel.context", 1)
        self.number += 1
        changes = {"train.iters": steps, "batch.global": microbatches, "model.layers": layers} | dict(more)
        settings = self.settings | changes
        result = empty_gpu.run("run", recipe, *empty_gpu.sets(settings), "--run-dir",
                               self.folder / f"run{self.number}", *(["--nproc", ranks] if ranks > 1 else []),
                               gpus=ranks)
        return result.processes[0], result

    def figures(self):
        base, _ = self.run(2, 1, 1)
        longer, _ = self.run(3, 1, 1)
        wider, _ = self.run(2, 2, 1)
        deeper, _ = self.run(2, 1, 2)
        longer_deeper, _ = self.run(3, 1, 2)
        both, _ = self.run(2, 2, 2)
        microbatch = wider.minus(base)  # one microbatch more in each of two steps
        layer = both.minus(deeper).minus(microbatch)
        step = longer.minus(base)  # with one microbatch
        layers_step = longer_deeper.minus(deeper).minus(step)

        def half(number):
            return number // 2 if number % 2 == 0 else number / 2

        per_microbatch = {kind: half(of(microbatch)) for kind, of in KINDS.items()}
        per_layer = {kind: half(of(layer)) for kind, of in KINDS.items()}
        per_step = {kind: of(step) - per_microbatch[kind] for kind, of in KINDS.items()}
        per_step_layer = {kind: of(layers_step) - per_layer[kind] for kind, of in KINDS.items()}
        return {
            "layer_kernels": per_layer["kernels"], "layer_gemms": per_layer["gemms"],
            "microbatch_kernels": per_microbatch["kernels"] - per_layer["kernels"],
            "microbatch_waits": per_microbatch["waits"], "layer_waits": per_layer["waits"],
            "microbatch_slow_copies": per_microbatch["slow copies"],
            "step_kernels": per_step["kernels"], "step_layer_kernels": per_step_layer["kernels"],
            "step_waits": per_step["waits"], "step_slow_copies": per_step["slow copies"],
            "step_allocations": step.all("allocation"),  # outside of the pool: none, or a step could not be captured
            "memory_beyond_plan_percent": beyond_plan(self.run(1, 1, 2, LARGE)[1]),
        }


GROUPED = "at::cuda::detail::grouped"  # LibTorch's grouped GEMMs are kernels of its own


KINDS = {
    "kernels": lambda counts: counts.all("kernel") - counts.all("kernel", GROUPED) + counts.all("fill"),
    "gemms": lambda counts: counts.all("gemm") + counts.all("kernel", GROUPED),
    "waits": lambda counts: counts.all("wait"),
    "slow copies": lambda counts: counts.all("copy", "pageable") + counts.all("copy", "blocking"),
}


WORKSPACE = 32 * 2**20  # cuBLAS's on Hopper, from LibTorch's pool: a plan counts it as reserved


def beyond_plan(printed):
    """By how many percent the first step's tensors took more than planned (below 0: less)."""
    found = re.search(r"peak ([\d.]+) (.B) of tensors in the first step, ([\d.]+) (.B) planned", printed.out)
    if found is None:
        sys.exit(f"{printed.command}: says nothing of its peak\n{printed.out}{printed.err}")
    units = {"kB": 1e3, "MB": 1e6, "GB": 1e9}
    taken, planned = float(found[1]) * units[found[2]], float(found[3]) * units[found[4]]
    return round(100 * ((taken - WORKSPACE) / planned - 1))


def documents(folder):
    (folder / "text.txt").write_text("one document.\n" * 4000)
    empty_gpu.run("data", "prepare", folder / "text.txt", "--output", folder / "corpus", "--tokenizer", "byte")
    return {"data.use": "indexed", "data.paths": [str(folder / "corpus_text_document")], "tokenizer.use": "byte",
            "tokenizer.vocab": None, "data.reset_positions": True, "data.reset_attention": True}


def write(table):
    lines = ["# The work that a step may give a GPU, measured on the empty runtime; see ratchets.py, which writes this file."]
    for name, figures in table.items():
        lines += ["", f'["{name}"]'] + [f"{figure} = {number}" for figure, number in figures.items()]
    TABLE.write_text("\n".join(lines) + "\n")


def compare(name, allowed, measured):
    for figure, number in measured.items():
        limit = allowed.get(figure)
        if limit is None:
            yield f"{name}: {figure} is {number} and not in the table"
        elif number > limit:
            yield f"{name}: {figure} grew from {limit} to {number}"
        elif number < limit:
            yield f"{name}: {figure} fell from {limit} to {number}: lower it in tests/cuda/ratchets.toml (--update)"


def main(words):
    empty_gpu.require()
    update = "--update" in words
    names = [word for word in words if not word.startswith("-")] or list(CASES)
    table = tomllib.loads(TABLE.read_text()) if TABLE.exists() else {}
    problems = []
    for name in names:
        if CASES[name].get("parallel.context", 1) > 1 and not NCCL.exists():
            print(f"{name}: not measured, as nccl.h was not there when megahost was built")
            continue
        with tempfile.TemporaryDirectory() as folder:
            measured = Case(name, pathlib.Path(folder)).figures()
        print(f"{name}: " + ", ".join(f"{figure} {number}" for figure, number in measured.items()), flush=True)
        problems += compare(name, table.get(name, {}), measured)
        if update:
            table[name] = measured
            write({name: table[name] for name in CASES if name in table})
    return "" if update else "\n".join(problems)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]) or 0)
