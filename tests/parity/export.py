"""`megahost checkpoint export`: transformers loads what it writes, with nothing missing or unexpected, and the same logits;
a run that begins with the export, saved and exported again, gives the same bytes. T5 generates the same tokens.

usage: export.py [--all]   every model, under every layout and in bfloat16, and not only one of each family and layouts that
                           touch it otherwise than others
"""

import json
import pathlib
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file

import encoder_models
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


def loaded(folder, kind=transformers.AutoModelForCausalLM, others=(), attention="eager"):
    """A model and what is wrong with it; `others` begin the names of tensors of another one."""
    model, info = kind.from_pretrained(folder, output_loading_info=True, dtype=torch.float32, attn_implementation=attention)
    info["unexpected_keys"] = [key for key in info["unexpected_keys"] if not key.startswith(tuple(others))]
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
    exported, problems = loaded(folder / "export", attention=case.attention)
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
    "pipeline": ["--nproc", 2, "--set", "parallel.pipeline=2"],
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


DPR_TOWERS = ("question_encoder.", "ctx_encoder.")


def check_generation(model, run):
    """Tokens that transformers' T5 generates as its files say, each the likeliest, and ours."""
    text, sentinel = "line 7 of <extra_id_0> words", 261  # of bytes and special tokens
    before, after = text.split("<extra_id_0>")
    encoder = torch.tensor([[*before.encode(), sentinel, *after.encode()]])
    # transformers' cache has no room for a decoder that is deeper than its encoder.
    made = model.generate(encoder, attention_mask=torch.ones_like(encoder), max_new_tokens=12, do_sample=False, use_cache=False)[0].tolist()
    theirs = [one for one in made[1:] if one != model.generation_config.eos_token_id]
    ours = json.loads(program.run("generate", run, "--sequence", f"encoder={text}", "--prompt", "[PAD]", "--temperature", 0, "--tokens", 12,
                                  "--json"))
    same = ours["ids"] == theirs and ours["prompt_ids"] == made[:1]
    return [] if same else [f"generates {made}, and we {ours}"]


def check_encoder(case, folder):
    """BERT, both towers of a retriever, or T5; saved by one rank and under layouts."""
    case.save(folder)
    data = case.text_data(folder)
    found, problems = {}, []
    for name in ("one rank", "zero 3", "pipeline") if case.name in ("bert", "dpr", "t5") or ALL else ("one rank",):
        run = saved_run(folder, name, folder / "model", *data, *LAYOUTS.get(name, []))
        program.run("checkpoint", "export", run, "-o", folder / (name + " export"), "--dtype", "float32")
        found[name] = files(folder / (name + " export"))
    problems += [f"{name} gives other bytes than one rank" for name, bytes in found.items() if bytes != found["one rank"]]
    exported = []
    for model in case.models:
        others = [tower for tower in DPR_TOWERS if not next(iter(model.state_dict())).startswith(tower)]
        tower, more = loaded(folder / "one rank export", type(model), others if len(case.models) > 1 else ())
        exported.append(tower)
        problems += more
    if case.untied:  # see encoder_models.t5
        head = tensors(folder / "one rank export")["lm_head.weight"]
        exported[0].lm_head.weight = torch.nn.Parameter(head)
    with torch.no_grad():
        theirs = case.forward(case.models)
        error = program.norm([ours - one for ours, one in zip(case.forward(exported), theirs)]) / program.norm(theirs)
    if not error <= program.LOGITS:
        problems.append(f"logits are off by {error:.2e}")
    again = saved_run(folder, "again", folder / "one rank export", *data)
    program.run("checkpoint", "export", again, "-o", folder / "export-2", "--dtype", "float32")
    if found["one rank"] != files(folder / "export-2"):
        problems.append("exported, read and exported again it has other bytes")
    if "encoder_tokens" in case.arrays:
        problems += check_generation(exported[0], folder / "one rank")
    print(f"{case.name}: a {exported[0].config.model_type}, logits off by {error:.2e}", flush=True)
    return problems


def check_further(case, folder):
    """Modules of multi-token prediction are layers behind the last: written and read with the recipe's, else left out with a word."""
    model = models.random_model(case)
    models.save(case, model, models.random_ids(case)[:, :models.SEQ], folder, length=models.SEQ)
    words = [*kept(case), "--set", "model.mtp_layers=1"]
    exports = []
    for name, weights in (("run", folder / "model"), ("again", folder / "run export")):  # the first begins them anew
        run = saved_run(folder, name, weights, *words)
        program.run("checkpoint", "export", run, "-o", folder / f"{name} export", "--dtype", "float32")
        exports.append(files(folder / f"{name} export"))
    problems = [] if exports[0] == exports[1] else ["exported, read and exported again it has other bytes"]
    written = tensors(folder / "run export")
    further = f"model.layers.{case.config.num_hidden_layers}."
    for name in ("enorm", "hnorm", "eh_proj", "shared_head.norm", "input_layernorm", "self_attn.o_proj", "mlp.gate"):
        if further + name + ".weight" not in written:
            problems.append(f"{further}{name}.weight is not written")
    for name, of in (("embed_tokens", "model.embed_tokens"), ("shared_head.head", "lm_head")):
        if not torch.equal(written[further + name + ".weight"], written[of + ".weight"]):
            problems.append(f"{name} of the module is not {of}")
    if json.loads((folder / "run export/config.json").read_text())["num_nextn_predict_layers"] != 1:
        problems.append("config.json does not say that there is a module")
    said = program.run("run", folder / "recipe.toml", "--weights", folder / "run export", "--run-dir", folder / "without", *KEEP, *kept(case))
    if "multi-token prediction" not in said:
        problems.append(f"nothing is said of what a recipe without mtp_layers leaves out: {said}")
    print(f"{case.name} with further tokens:", problems or "the same bytes", flush=True)
    return problems


failed = 0
for case in encoder_models.BERTS + encoder_models.DPRS[:1] + encoder_models.T5S:
    with tempfile.TemporaryDirectory() as temporary:
        problems = check_encoder(case, pathlib.Path(temporary))
    for problem in problems:
        print(f"  {case.name}: {problem}")
    failed += bool(problems)
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
for case in models.CASES:
    if case.name == "deepseek-v3":
        with tempfile.TemporaryDirectory() as temporary:
            failed += bool(check_further(case, pathlib.Path(temporary)))
sys.exit(failed and f"{failed} models are not exported as they are")
