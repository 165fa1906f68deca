"""`megahost checkpoint export`: transformers loads what it writes, with nothing missing or unexpected, and the same logits;
a run that begins with the export, saved and exported again, gives the same bytes.

usage: export.py [--all]   every model, under every layout and in bfloat16, and not only one of each family and layouts that
                           touch it otherwise than others
"""

import pathlib
import shutil
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file

import models
import program

KEEP = ["--set", "optimizer.lr=0", "--set", "optimizer.weight_decay=0", "--set", "train.iters=1"]


def saved_run(folder, name, weights, *words):
    """A run that changes no weight and saves them."""
    program.run("run", folder / "recipe.toml", "--weights", weights, "--run-dir", folder / name, *KEEP, *words)
    return folder / name


def files(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def tensors(folder):
    found = {}
    for path in folder.glob("*.safetensors"):
        found |= load_file(path)
    return found


def loaded(folder):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, dtype=torch.float32,
                                                                   attn_implementation="eager")
    problems = [f"{key}: {sorted(info[key])}" for key in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[key]]
    model.config.use_cache = False  # Qwen3Next's wants a layer of attention
    return model.eval(), problems


def mixes(case):
    return case.use == "moe" or "experts" in case.model


def kept(case):
    """Settings that keep a step from changing anything else."""
    return ["--set", "model.balance_bias_rate=1e-300"] if mixes(case) else []


def check(case, folder):
    model = models.random_model(case)
    ids = models.random_ids(case)[:, :models.SEQ]
    models.save(case, model, ids, folder, length=models.SEQ)
    run = saved_run(folder, "run", folder / "model", *kept(case))
    program.run("checkpoint", "export", run, "-o", folder / "export", "--dtype", "float32", "--file-size", 0.06)
    exported, problems = loaded(folder / "export")
    with torch.no_grad():
        ours, theirs = exported(ids).logits, model(ids).logits
    error = program.norm([ours - theirs]) / program.norm([theirs])
    if not error <= program.LOGITS:
        problems.append(f"logits are off by {error:.2e}")
    again = saved_run(folder, "again", folder / "export", *kept(case))
    program.run("checkpoint", "export", again, "-o", folder / "export-2", "--dtype", "float32", "--file-size", 0.06)
    if files(folder / "export") != files(folder / "export-2"):
        problems.append("exported, read and exported again it has other bytes")
    if ALL or case.name in ("gpt2", "qwen3-moe", "gpt-oss"):  # rounded as whole tensors, as experts' and in another order
        program.run("checkpoint", "export", run, "-o", folder / "half", "--dtype", "bfloat16")
        half, more = loaded(folder / "half")
        problems += more
        whole = tensors(folder / "export")
        for name, tensor in tensors(folder / "half").items():
            if not torch.equal(tensor, whole[name].to(tensor.dtype)):
                problems.append(f"{name} is not rounded to bfloat16")
    print(f"{case.name}: a {exported.config.model_type}, logits off by {error:.2e}", flush=True)
    return problems


LAYOUTS = {
    "tensor": ["--nproc", 2, "--set", "parallel.tensor=2"],
    "zero 3": ["--nproc", 2, "--set", "parallel.data=2", "--set", "parallel.zero=3"],
    "pipeline": ["--nproc", 2, "--set", "parallel.pipeline=2", "--set", "model.layers=3"],
}
ALL = "--all" in sys.argv
EXPERTS = {
    "expert": ["--nproc", 2, "--set", "parallel.data=2", "--set", "parallel.expert=2"],
    "expert tensor": ["--nproc", 2, "--set", "parallel.tensor=2", "--set", "parallel.expert_tensor=2"],
}


def check_layouts(case, folder):
    """The same bytes whatever layout saved the weights."""
    model = models.random_model(case)
    length = models.SEQ - mixes(case)  # tensor-parallel ranks share the tokens that go to experts
    ids = models.random_ids(case)[:2, :length]
    models.save(case, model, ids, folder, length=length)
    # The other layouts shard rows and layers, in all families alike.
    layouts = LAYOUTS if ALL or case.use == "moe" or case.name == "llama" else {"tensor": LAYOUTS["tensor"]}
    layouts = layouts | (EXPERTS if mixes(case) else {})
    found = {}
    for name, words in {"one rank": [], **layouts}.items():
        run = saved_run(folder, name, folder / "model", *kept(case), *words)
        program.run("checkpoint", "export", run, "-o", folder / (name + " export"))
        found[name] = files(folder / (name + " export"))
    return [f"{name} gives other bytes than one rank" for name, bytes in found.items() if bytes != found["one rank"]]


failed = 0
families = set()
for case in models.CASES:  # one of each family, and experts in 4 bits; all of them with --all
    new = case.config.model_type not in families
    families.add(case.config.model_type)
    if not (ALL or new or case.name == "gpt-oss-mxfp4"):
        continue
    with tempfile.TemporaryDirectory() as temporary:
        problems = check(case, pathlib.Path(temporary))
    for problem in problems:
        print(f"  {case.name}: {problem}")
    failed += bool(problems)
# Rows as they lie, by head, and within joined dimensions.
IN_EVERY_RUN = ("llama", "falcon-40b", "gpt-oss", "qwen3-next")
for case in models.CASES:
    if case.name not in IN_EVERY_RUN + ("olmo2-grouped", "pythia", "phi", "falcon-7b", "cohere", "gpt-oss-mxfp4") * ALL:
        continue
    with tempfile.TemporaryDirectory() as temporary:
        problems = check_layouts(case, pathlib.Path(temporary))
    print(f"{case.name} under layouts:", problems or "the same bytes")
    failed += bool(problems)
sys.exit(failed and f"{failed} models are not exported as they are")
