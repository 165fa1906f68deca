#!/usr/bin/env python3
"""Hybrids of Mamba-2, gated DeltaNet, attention and mixtures: every layout has the numbers of one rank, packed documents are apart, a
resumed run has the losses of one that was not stopped, generation over a cache writes what it writes without one, and what
cannot be is refused in a sentence."""

import json

from trial import Trial

trial = Trial("hybrid", """
[model]
use = "hybrid"
pattern = "MG*-"
layers = 4
hidden = 32
heads = 4
mamba_head_dim = 8
mamba_groups = 2
mamba_state = 6
mamba_chunk = 5
delta_key_heads = 2
delta_heads = 4
delta_key_dim = 6
delta_dim = 8
delta_chunk = 5
seq_length = 48
[data]
use = "text"
paths = ["texts"]
extensions = [".txt"]
split = [80, 20, 0]
[tokenizer]
use = "byte"
[batch]
global = 8
[train]
iters = 4
eval_interval = 0
[optimizer]
lr = 0.003
""")
trial.write_texts()

# Heads, groups and their norms are split; the state is passed along the ranks that hold other tokens.
trial.same("tensor=2; tensor=2,sequence=true; context=2; context=2,context_method=all_to_all; context=4; pipeline=2; "
           "pipeline=4,schedule=zb-h1; data=2,zero=1; data=2,zero=3; tensor=2,sequence=true,context=2; "
           "tensor=2,sequence=true,pipeline=2")
trial.same("tensor=6,sequence=true", "model.mamba_least_step=0.01")  # three ranks hold parts of a group, and share a key head
# One group of all heads, and mixers alone.
trial.same("tensor=2,sequence=true; context=2", "model.mamba_groups=1", "model.delta_key_heads=1", "recompute.use=full")
trial.same("tensor=2,context=2; pipeline=2,data=2,zero=1", "model.pattern=MG", "model.mamba_groups=4", "model.delta_key_heads=4",
           "model.tied=true", "model.bias=true", "model.mamba_conv_bias=false", "model.dropout=0.1", "recompute.use=selective",
           'recompute.parts=["mixer"]')
# Qwen3-Next: attention with a gate, and mixtures whose experts lie on ranks of their own.
QWEN = ("model.pattern=GE*E", "model.norm=rmsnorm_1p", "model.positions=rope", "model.rope_share=0.5", "model.qk_norm=true",
        "model.attention_gate=true", "model.kv_heads=2", "model.activation=swiglu", "model.experts=4", "model.expert_hidden=24",
        "model.shared_hidden=16", "model.shared_gate=true", "model.router=softmax_topk", "model.z_weight=0.001")
trial.same("tensor=2,sequence=true; tensor=2,expert=2; tensor=2,expert_tensor=2; data=2,expert=2; context=2,expert=2; "
           "pipeline=2,data=2,expert=2; data=2,zero=3", *QWEN)
# Nemotron 3: experts that read and make latents.
NEMOTRON = ("model.pattern=ME*E", "model.experts=4", "model.expert_hidden=24", "model.expert_latent=12", "model.shared_hidden=16",
            "model.router=sigmoid", "model.router_scale=2.5", 'model.balance=["sequence", "bias"]')
trial.same("tensor=2; tensor=2,sequence=true; tensor=2,expert=2; data=2,expert=2; tensor=2,expert_tensor=2; context=2,expert=2; "
           "pipeline=2; data=2,zero=3", *NEMOTRON)
# Packed documents, which samples of --model have.
text = trial.run("check", "--model", "hybrid", "--layouts", "tensor=2,sequence=true; context=2; context=4", "--precision", "float64",
           sets=('model.pattern="MG*-"',))
assert "every layout matches the single-rank result" in text

whole = trial.resumed()
assert len(whole) == 4, whole
plan = json.loads(trial.run("plan", "hybrid.toml", "--on", "h100", "--json", sets=("device=cpu", "parallel.pipeline=4")))
assert plan["model_flops"] > 0

# One more layer of gated DeltaNet: z, v, q, k, beta and dt of 32 + 32 + 12 + 12 + 4 + 4 rows and the output's 32 of 32; 56 taps of
# 4, two numbers of 4 heads, two norms. Its weights twice a token, and three products with 4 states of 6 by 8; thrice with backward.
PLAN = ("plan", "hybrid.toml", "--on", "h100", "--json")
one, two = (json.loads(trial.run(*PLAN, sets=("device=cpu", "model.pattern=G", f"model.layers={n}"))) for n in (1, 2))
assert two["parameters"] - one["parameters"] == 96 * 32 + 32 * 32 + 56 * 4 + 2 * 4 + 8 + 32
assert two["model_flops"] - one["model_flops"] == 3 * 8 * 48 * (2 * (96 * 32 + 32 * 32) + 3 * 2 * 4 * 6 * 8)

# A latent adds two matrices of 12 by 32 to a mixture, and its experts are 12 wide and not 32; two of them run.
parts = [json.loads(trial.run(*PLAN, sets=("device=cpu", "model.pattern=E", "model.layers=1", *NEMOTRON[1:3], *wide)))
         for wide in ((), NEMOTRON[3:4])]
assert parts[1]["parameters"] - parts[0]["parameters"] == 2 * 12 * 32 - 4 * 2 * 24 * 20
assert parts[1]["model_flops"] - parts[0]["model_flops"] == 3 * 8 * 48 * 2 * (2 * 12 * 32 - 2 * 2 * 24 * 20)

# A prompt longer than a chunk, then token by token; longer than the model sees at once.
trial.run("run", "hybrid.toml", "--run-dir", "qwen", sets=QWEN)
trial.run("run", "hybrid.toml", "--run-dir", "nemotron", sets=NEMOTRON)
for run in "whole", "qwen", "nemotron":
    words = ("generate", run, "--prompt", "red green blue ", "--tokens", "60", "--json")
    cached, read = (json.loads(trial.run(*words, *options).splitlines()[-1]) for options in ((), ("--no-cache",)))
    assert cached["cached"] and not read["cached"] and cached["ids"] == read["ids"], (cached, read)

trial.refused(
    ("model.pattern=MX-", "letter 2 is `X`"),
    ('model.pattern=""', "it has no letter"),
    ("model.mamba_groups=3", "are not divisible by mamba_groups 3"),
    ("model.pattern=MDX", "letter 2 is `D`; M is Mamba-2, G gated DeltaNet"),
    ("model.pattern=MGE*", "the pattern has mixtures (E); say of how many experts"),
    ("model.experts=4", "no layer of the pattern is a mixture (E)"),
    ("model.mamba_head_dim=7", "is not divisible by mamba_head_dim 7"),
    ("model.norm_placement=post", "before its parts"),
    ("model.parallel_residual=true", "has one part"),
    ("model.causal=false", "reads forward"),
    ("model.delta_heads=3", "delta_heads 3 are not divisible by delta_key_heads 2"),
    ("model.delta_chunk=0", "delta_chunk"),
)
