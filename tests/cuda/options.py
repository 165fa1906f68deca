"""Every option of every built-in plugin once on a GPU, each choice of those that have choices.

What a kernel computes is not seen here; that a step runs is: each operator has a form for CUDA, all tensors lie on the
GPU, and no host function follows a pointer to its memory. Options that are added to a schema and stand in no run here
fail the test by their name.

usage: options.py [PART/PARTS]
"""

import json
import pathlib
import re
import sys
import tempfile

import empty_gpu

# One run a line, on top of BASE. The first word names the architecture.
RUNS = """
llama precision=fp32 model.head_dim=32 model.kv_heads=2 model.ffn_hidden=96 model.norm_eps=1e-6 model.init_std=0.01
llama precision=fp16 fp16.initial_scale=1024 fp16.min_scale=2 fp16.window=1 fp16.hysteresis=1 optimizer.clip_grad=0
llama precision=fp16 fp16.loss_scale=128 model.scaled_init=false lr_schedule.use=inverse_sqrt lr_schedule.warmup_iters=1
llama precision=fp8 fp8.recipe=current fp8.margin=1 recompute.use=full recompute.method=block recompute.layers=1
llama precision=fp8 fp8.recipe=delayed fp8.history=4 fp8.amax=most_recent batch.global=1
llama precision=fp8 fp8.amax=max recompute.use=full recompute.method=uniform
llama precision=auto model.window=16 recompute.use=budget recompute.memory_gb=0.005
llama model.qk_norm=true model.qk_norm_over=all_heads model.norm=layernorm model.norm_placement=branch model.activation=geglu model.bias=true
llama model.qk_norm=true model.qk_norm_over=head model.parallel_residual=true model.norm=rmsnorm model.norm_placement=pre model.qkv_bias=true model.tied=true model.activation=swiglu
llama model.kv_rank=32 model.q_rank=48 model.rope_head_dim=8 model.head_dim=16 model.v_head_dim=16 model.rope_scaling=yarn model.rope_factor=2 model.rope_mscale=0.7 model.rope_mscale_all_dim=0.7
llama model.positions=rope model.rope_scaling=none model.rope_base=500 model.rope_share=0.5 model.activation=gelu
llama model.rope_scaling=linear model.rope_factor=2 model.positions=rope optimizer.use=sgd
llama model.rope_scaling=llama3 model.rope_factor=2 model.rope_low_freq=2 model.rope_high_freq=8 model.rope_original_length=32
llama model.rope_scaling=yarn model.rope_factor=2 model.rope_beta_slow=2 model.rope_beta_fast=16 model.rope_attention=1.1
llama model.rope_scaling=yarn model.rope_factor=2 model.rope_original_length=32 recompute.use=none data.pattern=markov
llama model.window=16 model.window_pattern=["window","global"] recompute.use=selective recompute.parts=["core_attention","norms"]
llama model.parallel_residual=true model.shared_norm=true model.norm=layernorm_no_bias model.rope_pairs=adjacent model.logit_scale=0.5 model.head_bias=true model.embedding_std=0.1
llama model.parallel_residual=true model.shared_norm=true model.rope_pairs=halves recompute.use=selective recompute.parts=["norms","mlp"]
gemma model.norm_placement=sandwich model.score_cap=50 model.logit_cap=30 model.window=16 model.window_pattern=["window","global"]
gemma model.norm=rmsnorm_1p model.norm_placement=sandwich model.scaled_embedding=true model.score_dim=32 model.window=16 model.window_pattern=["window","global"] model.window_rope_base=500 model.activation=geglu_tanh
llama model.mtp_layers=1 model.mtp_loss_weight=0.3
llama model.qk_norm=true model.qk_norm_over=own_head model.qk_norm_kind=layernorm_no_bias model.rope_pattern=["rope","none"]
llama model.qk_norm=true model.qk_norm_kind=rmsnorm_1p model.rope_scaling=longrope model.rope_original_length=16 model.rope_factor=4 model.rope_short_factors=[1,1,1,1,1,1,1,1] model.rope_long_factors=[1,1,1,2,2,2,4,4]
llama model.qk_norm=true model.qk_norm_kind=layernorm model.positions=alibi
llama model.qk_norm=true model.qk_norm_kind=rmsnorm model.positions=alibi_scaled
llama model.causal=false recompute.use=selective recompute.parts=["activations","attention"]
llama recompute.use=selective recompute.parts=["mlp"] data.pattern=repeat data.period=8 data.branches=2 data.samples=64
gpt model.dropout=0.1 model.attention_dropout=0.1 model.positions=learned model.activation=gelu_tanh data.pattern=count
gpt model.norm_placement=post model.positions=none model.activation=relu2 model.vocab=300 data.pattern=random
llama optimizer.use=adam optimizer.betas=[0.8,0.9] optimizer.eps=1e-7 optimizer.weight_decay=0.2 optimizer.decay_vectors=true
llama optimizer.use=adamw optimizer.master_weights=false optimizer.stochastic_rounding=true
llama optimizer.use=adamw optimizer.state_dtype=bf16 optimizer.weight_decay_schedule=linear optimizer.weight_decay_start=0
llama optimizer.use=sgd optimizer.momentum=0.9 optimizer.nesterov=true optimizer.weight_decay_schedule=cosine
llama optimizer.use=sgd optimizer.state_dtype=fp32 optimizer.offload=true optimizer.weight_decay_schedule=constant
llama optimizer.use=adamw optimizer.state_dtype=bf16 optimizer.stochastic_rounding=true optimizer.offload=true
llama optimizer.use=muon optimizer.momentum=0.9 optimizer.nesterov=false optimizer.steps=2 optimizer.scale=original
llama optimizer.use=muon optimizer.scale=match_rms_adamw optimizer.precision=fp32 optimizer.adamw=["embedding.*"]
llama optimizer.use=muon optimizer.scale=none optimizer.precision=bf16 optimizer.lr=1e-3
llama optimizer.groups=[{"match"=["embedding.*"],"frozen"=true}]
llama lr_schedule.use=constant train.iters= train.samples=4 lr_schedule.warmup_samples=2 lr_schedule.warmup_init=1e-5 guards.nan=skip guards.spike=skip
llama lr_schedule.use=cosine lr_schedule.warmup_share=0.1 lr_schedule.decay_iters=2 lr_schedule.min_lr=1e-5 guards.nan=stop
llama lr_schedule.use=linear train.iters= train.samples=4 lr_schedule.decay_samples=4 checkpoint.interval=1 guards.nan=rewind guards.spike=rewind
llama lr_schedule.use=wsd lr_schedule.cooldown=linear lr_schedule.cooldown_iters=1 log.num_zeros=true log.params_norm=true
llama lr_schedule.use=wsd lr_schedule.cooldown=exponential train.iters= train.samples=4 lr_schedule.cooldown_samples=2 checkpoint.use=native
llama lr_schedule.use=wsd lr_schedule.cooldown=cosine lr_schedule.cooldown_share=0.5 guards.spike=stop
llama lr_schedule.use=wsd lr_schedule.cooldown=minus_sqrt guards.spike=off
llama train.deterministic=true batch.rampup_start=1 batch.rampup_increment=1 batch.rampup_samples=2
moe model.router=topk_softmax model.balance=["auxiliary","bias"] model.balance_bias_rate=0.01
moe model.router=softmax_topk model.balance=["sequence"] model.balance_weight=0.1 model.z_weight=0.1 model.expert_hidden=32
moe model.router=sigmoid model.router_normalise=true model.router_scale=2 model.router_groups=2 model.router_groups_chosen=1 model.balance=["global"]
moe model.balance=["none"] model.shared_hidden=32 model.expert_latent=16 model.shared_gate=true model.first_dense=1 model.experts=4
moe model.capacity_factor=1 model.capacity_drop=probability model.capacity_pad=true model.moe_every=2
moe model.capacity_factor=1 model.capacity_drop=position model.capacity_pad=false model.moe_pattern=["moe","dense"]
moe model.experts_per_token=1 model.router=sigmoid model.bias=true precision=fp8
moe precision=fp32 optimizer.use=muon
moe optimizer.use=adafactor optimizer.decay_rate=-0.7 optimizer.clip_threshold=0.5 optimizer.beta1=0.9 optimizer.scale_parameter=true optimizer.relative_step=true
llama optimizer.use=adafactor optimizer.offload=true optimizer.eps=[1e-30,1e-3] optimizer.scale_parameter=false
llama optimizer.use=schedule_free_adamw optimizer.r=1 optimizer.weight_lr_power=1 train.eval_interval=1
llama precision=fp32 optimizer.use=schedule_free_adamw optimizer.offload=true
moe model.sinks=true model.attention_gate=true model.bias=true model.activation=swiglu_clamped model.window=16 model.window_pattern=["window","global"] model.rope_scaling=yarn model.rope_factor=2 model.rope_original_length=32 model.rope_truncate=false
llama checkpoint.async=true checkpoint.interval=1 checkpoint.if_busy=wait checkpoint.keep_every=1 optimizer.use=lion
llama checkpoint.async=false checkpoint.interval=1 checkpoint.if_busy=skip model.activation=relu
hybrid model.pattern="M*-" model.mamba_heads=8 model.mamba_head_dim=16 model.mamba_groups=2 model.mamba_state=16 model.mamba_taps=3 model.mamba_conv_bias=false model.mamba_least_step=0.001 model.mamba_chunk=8
hybrid model.pattern="G*-" model.delta_key_heads=2 model.delta_heads=4 model.delta_key_dim=16 model.delta_dim=8 model.delta_taps=3 model.delta_chunk=8
bert data.use=bert data.paths=["@this"] tokenizer.use=byte tokenizer.vocab= tokenizer.special=true model.token_types=2 model.pair_head=true model.head_activation=gelu
bert data.use=bert data.paths=["@this"] tokenizer.use=byte tokenizer.vocab= tokenizer.special=true model.head_activation=gelu_tanh
bert data.use=bert data.paths=["@this"] tokenizer.use=byte tokenizer.vocab= tokenizer.special=true model.head_activation=relu
bert data.use=bert data.paths=["@this"] tokenizer.use=byte tokenizer.vocab= tokenizer.special=true model.head_activation=relu2
retriever data.use=ict data.paths=["@this"] tokenizer.use=byte tokenizer.vocab= tokenizer.special=true model.shared_towers=true model.query_length=16 model.projection_dim=32 model.score_scaling=true model.report_top=[1,2] batch.micro=2
retriever data.use=pairs data.paths=["@pairs"] tokenizer.use=byte tokenizer.vocab= tokenizer.special=true model.hard_negatives=2 batch.micro=2
t5 data.use=t5 data.paths=["@this"] tokenizer.use=byte tokenizer.vocab= tokenizer.special=true tokenizer.extra_ids=16 model.encoder_layers=1 model.encoder_length=64 model.head_scale=true model.buckets=8 model.max_distance=16 model.positions=relative model.scaled_init=true model.activation=geglu_tanh
t5 data.use=t5 data.paths=["@this"] tokenizer.use=byte tokenizer.vocab= tokenizer.special=true tokenizer.extra_ids=16 model.encoder_layers=1 model.encoder_length=64 model.positions=rope model.rope_base=500
""".replace("@this", __file__).replace("@pairs", str(pathlib.Path(__file__).with_name("pairs.jsonl")))

BASE = {
    "device": "cuda", "precision": "bf16", "model.layers": 2, "model.hidden": 64, "model.heads": 4, "model.seq_length": 32,
    "data.use": "mock", "tokenizer.use": "null", "tokenizer.vocab": 257, "batch.global": 2, "batch.micro": 1,
    "train.iters": 2, "log.interval": 1,
}
# Options of the host's alone: what they change never reaches a GPU.
HOST = {
    "name", "run_dir", "launcher", "storage", "plugins", "sweep", "extends", "preset", "device", "model.use", "model.preset", "model.from",
    "data.use", "data.split", "data.paths", "data.extensions", "data.eod", "data.weights", "data.shuffle",
    "data.one_sentence", "data.query", "data.query_in_block", "data.titles", "data.mask_prob", "data.max_ngram", "data.mean_span", "data.pair", "data.prefetch", "data.prefetch_threads", "data.short_seq_prob", "data.whole_words",
    "data.cache", "data.cache_limit", "data.mask_eod_loss", "data.changes", "data.data_sharding", "data.dataloader", "data.drop_last_partial", "data.extra_token",
    "data.fim_middle", "data.fim_prefix", "data.fim_rate", "data.fim_spm_rate", "data.fim_suffix", "data.full_validation",
    "data.index_files", "data.mmap", "data.order", "data.packing", "data.sources", "data.supervised", "data.validation_by_source",
    "tokenizer.use", "tokenizer.vocab", "tokenizer.merges", "tokenizer.eod",
    "tokenizer.special_tokens", "tokenizer.add_special_tokens", "tokenizer.add_bos", "tokenizer.add_eos", "tokenizer.bos_eos", "tokenizer.extra_ids",
    "tokenizer.lower_case", "tokenizer.chinese",
    "tokenizer.bos", "tokenizer.eos", "tokenizer.pad", "tokenizer.path", "tokenizer.pattern", "train.samples", "train.eval_interval", "train.eval_iters", "train.seed",
    "train.exit_minutes", "train.exit_iters", "lr_schedule.on_resume", "guards.spike_z", "guards.window", "guards.skips",
    "guards.rewinds", "guards.skip_batches", "checkpoint.auto", "checkpoint.dir", "checkpoint.interval", "checkpoint.keep",
    "checkpoint.keep_best", "checkpoint.keep_for", "checkpoint.keep_per", "checkpoint.local_dir", "checkpoint.local_interval", "checkpoint.local_copies",
    "load.from", "load.step", "load.format", "load.optimizer", "load.progress", "load.rng", "load.data", "load.strict", "load.match", "log.progress",
    "checkpoint.save_at_end", "checkpoint.use", "comm.timeout", "comm.hang_after", "log.format", "log.tensorboard",
}
# Documents are runs.py's, and copies of several ranks ranks.py's.
# SOAP and Shampoo decompose matrices by cuSOLVER, which this runtime has no stand-in for.
ELSEWHERE = {"optimizer.use=soap", "optimizer.use=shampoo", "optimizer.shampoo_beta", "optimizer.precondition_frequency", "optimizer.damping",
             "optimizer.normalise", "optimizer.max_preconditioner_dim", "data.reset_positions", "data.reset_attention", "guards.compare_copies"}


def settings_of(line):
    architecture, *words = line.split()
    settings = dict(BASE, **{"model.use": architecture}, **dict(word.split("=", 1) for word in words))
    return {key: value for key, value in settings.items() if value != ""}  # an empty one takes BASE's away


def options_of(schema):
    """Dotted keys of the recipe with the choices of each, those of every plugin among them."""
    tables = {name: table.get("properties", {}) for name, table in schema["definitions"].items()}
    keys = {"": schema["properties"], **tables}
    for table, fields in keys.items():
        section = table.split(".")[0]  # "optimizer.muon" is section optimizer
        for name, field in fields.items():
            if section or not (name in tables or "$ref" in field):
                choices = field.get("enum") or field.get("items", {}).get("enum", [])
                yield f"{section}.{name}".lstrip("."), [one for one in choices if isinstance(one, str) and "/" not in one]


def values_of(setting):
    """The values that a setting gives: of a list, each of its words."""
    return re.findall(r"[\w.-]+", str(setting))


def uncovered(schema):
    """Options, and choices of options, that no run has."""
    seen = [settings_of(line) for line in RUNS.strip().splitlines()]
    missing = set()
    for key, choices in options_of(schema):
        if key in HOST | ELSEWHERE or key.split(".")[0] in ("parallel", "sweep"):
            continue
        said = [values_of(settings[key]) for settings in seen if key in settings]
        if not said:
            missing.add(key)
        missing |= {f"{key}={choice}" for choice in choices if not any(choice in values for values in said)}
    return sorted(missing - ELSEWHERE)


def planted_ends(chosen):
    """The ends of experts' rows if 32 tokens choose so many each, evenly among 4 or 8."""
    return ";".join(",".join(str(32 * chosen // experts * i) for i in range(experts + 1)) for experts in (4, 8))


def failure(line):
    """The error of a run that fails; "" if it succeeds."""
    settings = settings_of(line)
    plant = planted_ends(int(settings.get("model.experts_per_token", 2))) if settings["model.use"] == "moe" else ""
    with tempfile.TemporaryDirectory() as folder:
        recipe = pathlib.Path(folder) / "recipe.toml"
        recipe.write_text('name = "options"\n')
        result = empty_gpu.call("run", recipe, *empty_gpu.sets(settings), "--run-dir", pathlib.Path(folder) / "run",
                                plant=plant)
    if result.status != 0:
        return f"{line}: status {result.status}\n{result.out[-500:]}{result.err[-2000:]}"
    if "lm loss" not in result.out and "retrieval loss" not in result.out:
        return f"{line}: no step was made\n{result.out}"
    return "" if result.counts.all("gemm") > 0 else f"{line}: nothing was multiplied on the GPU"


def main(words):
    empty_gpu.require()
    part, parts = map(int, (words[0] if words else "1/1").split("/"))
    problems = []
    if part == 1:
        schema = json.loads(empty_gpu.run("recipe", "schema").out)
        problems += [f"no run here has {option}: add it to RUNS" for option in uncovered(schema)]
    problems += map(failure, RUNS.strip().splitlines()[part - 1::parts])
    return "\n".join(filter(None, problems))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]) or 0)
