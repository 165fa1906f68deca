#!/usr/bin/env python3
"""--weights over ranks: a Hugging Face folder, and a run folder, give every layout the losses of one rank."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, os.environ["MEGAHOST_SOURCE"] + "/tests/cli")
import hub

folder = pathlib.Path(tempfile.mkdtemp(prefix="megahost-weights-"))
rest = """
tokenizer = { use = "null", vocab = 256 }
data = { use = "mock" }
batch = { global = 4, micro = 1 }
train = { iters = 2 }
precision = "fp32"
log = { interval = 1, tensorboard = false }
checkpoint = { save_at_end = false }
comm = { timeout = 60 }
"""


def megahost(*words):
    return subprocess.run([os.environ["MEGAHOST"], *words], cwd=folder, capture_output=True, text=True)


def recipe(name, model):
    (folder / f"{name}.toml").write_text(f"model = {model}\n{rest}")


def options(layout, ranks):
    settings = [word for setting in layout.split(",") if setting for word in ("--set", "parallel." + setting)]
    return settings + (["--nproc", str(ranks)] if ranks > 1 else [])


def trained(name, weights, layout="", ranks=1, *words):
    """The losses of two steps that begin with these weights."""
    run = " ".join([name, weights, layout, *words[1::2]]).strip()
    result = megahost("run", f"{name}.toml", "--weights", weights, "--run-dir", run, *options(layout, ranks), *words)
    assert result.returncode == 0, f"{run}: {result.stdout}{result.stderr}"
    records = [json.loads(line) for line in (folder / run / "metrics.jsonl").read_text().splitlines()]
    return [record["losses"]["lm loss"] for record in records if "losses" in record]


def evaluated(name, weights, layout="", ranks=1):
    result = megahost("eval", f"{name}.toml", "--weights", weights, "--set", "train.eval_iters=2", *options(layout, ranks))
    assert result.returncode == 0, f"{name} {weights} {layout}: {result.stdout}{result.stderr}"
    return [float(result.stdout.split()[2])]


def compare(what, of, name, weights, layouts):
    one = of(name, weights)
    for layout, ranks in layouts:
        other = of(name, weights, layout, ranks)
        worst = max(abs(a - b) / a for a, b in zip(one, other, strict=True))
        print(f"{what}, {layout}: {worst:.1e}")
        assert worst < 1e-5, f"{what}, {layout}: {other}, on one rank {one}"


stages = [("pipeline=2", 2), ("pipeline=2,virtual_stages=2", 2), ("pipeline=2,virtual_stages=2,schedule=zb-v", 2)]
dense = stages + [("tensor=2,sequence=true", 2), ("context=2", 2), ("data=2,zero=1", 2), ("data=2,zero=3", 2),
                  ("tensor=2,pipeline=2", 4)]

# The output layer of a GPT-2 is its embedding: the first and the last stage have it.
gpt = {"model_type": "gpt2", "n_layer": 4, "n_embd": hub.HIDDEN, "n_head": 2, "n_positions": hub.LENGTH, "vocab_size": hub.VOCAB}
hub.write(folder / "gpt2", gpt, [("transformer." + name, sizes) for name, sizes in hub.shapes(4)])
recipe("gpt", '{ from = "gpt2" }')
compare("a Hugging Face folder", trained, "gpt", "gpt2", dense)
compare("a Hugging Face folder is evaluated", evaluated, "gpt", "gpt2", [stages[1], ("tensor=2,pipeline=2", 4)])

# Experts lie on other ranks, and layers.
hidden, ffn, experts = 16, 24, 4
mixtral = {"model_type": "mixtral", "num_hidden_layers": 2, "hidden_size": hidden, "num_attention_heads": 2,
           "num_key_value_heads": 2, "intermediate_size": ffn, "num_local_experts": experts, "num_experts_per_tok": 2,
           "vocab_size": 256, "max_position_embeddings": 16, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
           "tie_word_embeddings": False, "sliding_window": None}
tensors = [("model.embed_tokens.weight", [256, hidden]), ("model.norm.weight", [hidden]), ("lm_head.weight", [256, hidden])]
for layer in range(2):
    at = f"model.layers.{layer}."
    tensors += [(at + name + ".weight", sizes) for name, sizes in (
        ("input_layernorm", [hidden]), ("post_attention_layernorm", [hidden]),
        *((f"self_attn.{part}_proj", [hidden, hidden]) for part in "qkvo"),
        ("block_sparse_moe.gate", [experts, hidden]),
        *((f"block_sparse_moe.experts.{expert}.{part}", [hidden, ffn] if part == "w2" else [ffn, hidden])
          for expert in range(experts) for part in ("w1", "w2", "w3")))]
hub.write(folder / "mixtral", mixtral, tensors)
recipe("moe", '{ from = "mixtral" }')
compare("a mixture at Hugging Face", trained, "moe", "mixtral",
        [("data=2,expert=2", 2), ("pipeline=2", 2), ("pipeline=2,data=2,expert=2", 4)])

# A run of two ranks, and a mixture whose experts begin as that run's feed-forward.
llama = f"layers = 4, hidden = {hidden}, heads = 2, ffn_hidden = {ffn}, seq_length = 16"
recipe("llama", f'{{ use = "llama", {llama} }}')
result = megahost("run", "llama.toml", "--run-dir", "saved", "--set", "checkpoint.save_at_end=true", *options("pipeline=2", 2))
assert result.returncode == 0, result.stdout + result.stderr
compare("a run folder", trained, "llama", "saved", [stages[1], *dense[3:]])
compare("a run folder is evaluated", evaluated, "llama", "saved", [("pipeline=2", 2), ("context=2", 2)])

# A part of it, and all of its state: what a rank's parameters and shards are is asked of the checkpoint by their own names.
some = [("pipeline=2", 2), ("data=2,zero=3", 2), ("tensor=2,pipeline=2", 4)]


def partly(name, weights, layout="", ranks=1):
    return trained(name, weights, layout, ranks, "--set", "tokenizer.vocab=300", "--allow-change", "tokenizer.vocab",
                   "--set", 'load.match={"embedding.*"=false,"head.weight"=false}')


def wholly(name, weights, layout="", ranks=1):
    return trained(name, weights, layout, ranks, "--set", "load.optimizer=true", "--set", "load.progress=true",
                   "--set", "load.data=true", "--set", "train.iters=4")


compare("a part of a run folder", partly, "llama", "saved", some)
compare("the state of a run folder", wholly, "llama", "saved", some)
recipe("upcycled", f'{{ use = "moe", {llama}, experts = 4, experts_per_token = 2 }}')
compare("an upcycled run", trained, "upcycled", "saved", [("pipeline=2", 2), ("pipeline=2,data=2,expert=2", 4)])

# Modules of multi-token prediction begin anew, on whichever stage has the head; an export has no place for them.
mtp = ("--set", "model.mtp_layers=1", "--allow-change", "model.mtp_layers")
alone, in_stages = (trained("llama", "saved", layout, ranks, *mtp) for layout, ranks in (("", 1), ("pipeline=2", 2)))
assert max(abs(a - b) / a for a, b in zip(alone, in_stages, strict=True)) < 1e-5, (alone, in_stages)
assert abs(alone[0] - trained("llama", "saved", "data=2", 2)[0]) < 1e-5, alone
result = megahost("run", "llama.toml", "--run-dir", "predicting", "--set", "checkpoint.save_at_end=true", *mtp[:2])
assert result.returncode == 0, result.stderr
result = megahost("checkpoint", "export", "predicting", "-o", "exported")
assert "left out, for they have no counterpart there: 13 tensors, head.mtp.0." in result.stdout, result.stdout + result.stderr
refused = megahost("eval", "llama.toml", "--weights", "exported", *mtp)
assert refused.returncode == 5 and "the checkpoint lacks head.mtp.0." in refused.stderr, refused.stderr
trained("llama", "exported", "", 1, *mtp)

# A fault that one stage finds is reported by all, once: a tensor of the last layer that has another
# shape.
hub.write(folder / "short", gpt, [("transformer." + name, [8] if name == "h.3.ln_1.weight" else sizes)
                                  for name, sizes in hub.shapes(4)])
for layout, ranks in (("", 1), ("pipeline=2", 2)):
    result = megahost("run", "gpt.toml", "--weights", "short", "--run-dir", "refused", *options(layout, ranks))
    said = "short: transformer.h.3.ln_1.weight has the shape [8], the recipe's model needs [16]"
    assert result.returncode == 5 and result.stderr.count(said) == 1, result.stderr
