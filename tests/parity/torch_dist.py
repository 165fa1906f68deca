"""Megatron-LM's checkpoints, both ways: what megatron-core 0.16.1 saved gives its logits here, and is saved again with the same
bits; what megahost exports its dist_checkpointing.load reads. Files of two tensor-parallel ranks and Adam's moments, too."""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file

import megatron_cpu
import program

SEQ, VOCAB = 32, 96
STEPS, BATCH, LR = 5, 4, 1e-2
problems = []

GPT = dict(learned=True, tied=True, normalization="LayerNorm", activation_func=torch.nn.functional.gelu, ffn_hidden_size=100)
LLAMA = dict(normalization="RMSNorm", gated_linear_unit=True, activation_func=torch.nn.functional.silu, add_bias_linear=False,
             num_query_groups=2, ffn_hidden_size=80, layernorm_epsilon=1e-5)
QWEN = LLAMA | dict(add_qkv_bias=True, qk_layernorm=True, kv_channels=16)
LATENT = {key: value for key, value in LLAMA.items() if key != "num_query_groups"} | dict(
    multi_latent_attention=True, q_lora_rank=24, kv_lora_rank=20, qk_head_dim=12, qk_pos_emb_head_dim=8, v_head_dim=10,
    qk_layernorm=True, rope_type="rope", rotary_scaling_factor=1.0)
PREDICTING = LLAMA | dict(mtp_num_layers=2, mtp_loss_scaling_factor=0.4)
MIXTRAL = LLAMA | dict(num_moe_experts=4, moe_router_topk=2, moe_ffn_hidden_size=40, moe_router_load_balancing_type="none",
                       moe_token_dispatcher_type="allgather", moe_router_pre_softmax=False)

COMMON = dict(layers=3, hidden=48, heads=4, vocab=VOCAB, seq_length=SEQ)
OURS = {
    "gpt": dict(use="gpt", activation="gelu", ffn_hidden=100) | COMMON,
    "llama": dict(use="llama", kv_heads=2, ffn_hidden=80) | COMMON,
    "qwen": dict(use="llama", kv_heads=2, ffn_hidden=80, qkv_bias=True, qk_norm=True, head_dim=16) | COMMON,
    "latent": dict(use="llama", q_rank=24, kv_rank=20, head_dim=12, rope_head_dim=8, v_head_dim=10, ffn_hidden=80) | COMMON,
    "predicting": dict(use="llama", kv_heads=2, ffn_hidden=80, mtp_layers=2, mtp_loss_weight=0.4) | COMMON,
    "mixtral": dict(use="moe", kv_heads=2, experts=4, experts_per_token=2, expert_hidden=40, router="topk_softmax",
                    balance=["none"]) | COMMON,
}
TE_NORMS = {
    "mixtral": {"mlp.linear_fc1.layer_norm_": "pre_mlp_layernorm."},
    "latent": {"pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_", "q_layernorm.": "linear_q_up_proj.layer_norm_",
               "kv_layernorm.": "linear_kv_up_proj.layer_norm_"},
}
THEIRS = {"gpt": GPT, "llama": LLAMA, "qwen": QWEN, "latent": LATENT, "predicting": PREDICTING, "mixtral": MIXTRAL}


def expect(condition, text):
    if not condition:
        problems.append(text)


def sharded(model):
    from megatron.core import parallel_state

    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    return model.sharded_state_dict(metadata=dict(dp_cp_group=group))


def save(model, folder, **state):
    from megatron.core import dist_checkpointing

    folder.mkdir(parents=True)
    args = argparse.Namespace(num_attention_heads=4, consumed_train_samples=state.get("iteration", 3) * BATCH,
                              untie_embeddings_and_output_weights=True)
    dist_checkpointing.save(dict(model=sharded(model), args=args, **(dict(iteration=3, checkpoint_version=3.0) | state)), str(folder))


def recipe(folder, name, **sections):
    file = folder / f"{name}.json"
    given = dict(name=name, model=OURS[name], tokenizer=dict(use="null", vocab=VOCAB), precision="fp32",
                 data=dict(use="indexed", paths=[str(folder / "corpus_text_document")], shuffle=False, split=[1, 0, 0]),
                 optimizer=dict(use="adamw", lr=LR, weight_decay=0, clip_grad=0, betas=[0.9, 0.95], eps=1e-8),
                 lr_schedule=dict(use="constant"), batch=dict(**{"global": BATCH}, micro=2), train=dict(iters=STEPS),
                 checkpoint=dict(dir=str(folder / f"run-{name}")))
    file.write_text(json.dumps(given | sections))
    return file


def logits_here(folder, file, weights, ids):
    (folder / "ids.json").write_text(json.dumps(ids.tolist()))
    out = folder / "logits.safetensors"
    program.run("eval", file, "--weights", weights, "--ids", folder / "ids.json", "--logits", out)
    return load_file(out)["logits"]


def compare_logits(what, found, expected):
    error = program.norm([found - expected]) / program.norm([expected])
    expect(error <= program.LOGITS, f"{what}: logits differ by {error:.2e} of their norm")
    print(f"{what}: logits off by {error:.1e} of their norm", flush=True)


def compare_predictions(name, model, file, folder):
    """Losses and all gradients of a model that learns further tokens."""
    ids = torch.randint(0, VOCAB, (2, SEQ + 1), generator=torch.Generator().manual_seed(1))
    expected = megatron_cpu.losses_of(model, ids[:, :-1], ids[:, 1:])
    (folder / "ids.json").write_text(json.dumps(ids.tolist()))
    out = folder / "gradients.safetensors"
    said = program.run("eval", file, "--weights", folder / "theirs", "--ids", folder / "ids.json", "--gradients", out)
    found = [float(value) for value in re.findall(r"loss (\d+\.\d+)", said)]
    worst = max(abs(a - b) / b for a, b in zip(found, expected, strict=True))
    expect(worst <= 1e-6, f"{name}: losses are {found}, Megatron's {expected}")
    gradients = load_file(out)
    theirs = {key: value.grad for key, value in model.named_parameters()}
    expect(set(gradients) == set(theirs), f"{name}: gradients of {set(gradients) ^ set(theirs)}")
    off = max(((gradients[key] - value).norm() / value.norm()).item() for key, value in theirs.items())
    expect(off <= 1e-4, f"{name}: gradients differ by {off:.1e} of their norms")
    print(f"{name}: losses {found} off by {worst:.1e}, gradients by {off:.1e}", flush=True)


def read_back(name, model, folder):
    """Loads what megahost exported into a model of other values, which then are the first one's."""
    from megatron.core import dist_checkpointing

    other = megatron_cpu.gpt_model(seed=99, **THEIRS[name])
    wanted = sharded(other)
    for tensor in wanted.values():  # megatron-core's own layers call some norms by other names than TE's
        for own, te in TE_NORMS.get(name, {}).items():
            if hasattr(tensor, "key"):
                tensor.key = tensor.key.replace(own, te)
    common = dist_checkpointing.load(dict(model=wanted), str(folder), strict="log_all")  # no _extra_state is written
    expect(common["iteration"] == 3, f"{name}: the iteration is {common['iteration']}")
    loaded = {key: value for key, value in common["model"].items() if torch.is_tensor(value)}
    own = {key: value for key, value in model.state_dict().items() if torch.is_tensor(value)}
    expect(set(own) <= set(loaded), f"{name}: not loaded: {sorted(set(own) - set(loaded))}")
    for key, value in own.items():
        expect(key in loaded and torch.equal(loaded[key], value), f"{name}: {key} has other bits in {folder}")
    print(f"{name}: dist_checkpointing.load has {len(own)} tensors with the same bits", flush=True)


TWO = """
import pathlib, sys, torch
sys.path.insert(0, sys.argv[4])
import megatron_cpu
rank, folder, name = int(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
megatron_cpu.start(rank, 2, folder / "meet", tensor=2)
import argparse, os
import torch_dist as cases
from megatron.core import dist_checkpointing
model = megatron_cpu.gpt_model(seed=7, **cases.THEIRS[name])
loaded = dist_checkpointing.load(dict(model=cases.sharded(model)), str(folder / "theirs/iter_0000003"))["model"]
model.load_state_dict(loaded)
place = folder / f"legacy/iter_0000003/mp_rank_{rank:02d}"
place.mkdir(parents=True)
torch.save(dict(model=model.state_dict(), checkpoint_version=3.0, iteration=3, args=argparse.Namespace(swiglu=name == "llama")),
           place / "model_optim_rng.pt")
torch.distributed.barrier()
os._exit(0)
"""


def two_ranks(name, folder, script=TWO):
    """The files of two tensor-parallel ranks have the tensors of the folder that both saved together."""
    here = pathlib.Path(__file__).parent
    workers = [subprocess.Popen([sys.executable, "-c", script, str(rank), str(folder), name, str(here)], stderr=subprocess.PIPE,
                                text=True) for rank in range(2)]
    for worker in workers:
        error = worker.communicate()[1]
        assert worker.returncode == 0, error
    said = program.run("checkpoint", "diff", folder / "theirs", folder / "legacy")
    expect("0 differ" in said and "only in" not in said, f"{name}, files of two ranks: {said}")


def case(name, folder):
    model = megatron_cpu.gpt_model(**THEIRS[name])
    save(model, folder / "theirs/iter_0000003")
    file = recipe(folder, name)
    if name == "predicting":  # megatron-core makes no logits of these
        compare_predictions(name, model, file, folder)
    else:
        ids = torch.randint(0, VOCAB, (2, SEQ), generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            expected = megatron_cpu.logits_of(model, ids)
        compare_logits(name, logits_here(folder, file, folder / "theirs", ids), expected)
    program.run("checkpoint", "import", folder / "theirs", "--recipe", file, "-o", folder / "run")
    program.run("checkpoint", "export", folder / "run", "--to", "torch_dist", "-o", folder / "ours")
    read_back(name, model, folder / "ours/iter_0000003")
    said = program.run("checkpoint", "diff", folder / "theirs", folder / "ours")
    expect("0 differ" in said, f"{name}: the round trip changed bits: {said}")
    expect("every checksum matches" in program.run("checkpoint", "verify", folder / "theirs"), f"{name}: verify")
    if name in ("gpt", "llama"):
        two_ranks(name, folder)
        compare_logits(f"{name}, files of two ranks", logits_here(folder, file, folder / "legacy", ids), expected)
    elif name in ("latent", "predicting"):
        two_ranks(name, folder)


def corpus(folder):
    tokens = torch.randint(0, VOCAB, (STEPS * BATCH * SEQ + 1,), generator=torch.Generator().manual_seed(2))
    (folder / "corpus.jsonl").write_text(json.dumps({"text": " ".join(map(str, tokens.tolist()))}))
    program.run("data", "prepare", folder / "corpus.jsonl", "--output", folder / "corpus", "--tokenizer", "null", "--set",
                f"tokenizer.vocab={VOCAB}")
    return torch.stack([tokens[i * SEQ:(i + 1) * SEQ + 1] for i in range(STEPS * BATCH)]).view(STEPS, BATCH, SEQ + 1)


def damage(step):
    """Leaves half of each file of tensors: what came last, weights or state, is gone."""
    for file in step.glob("*.distcp"):
        os.truncate(file, file.stat().st_size // 2)


def moments(folder, stop=3):
    """Megatron's optimizer trains; from its checkpoint in the middle megahost goes on with its losses. A newer one is
    damaged: weights and state are both of the older one."""
    from megatron.core.dist_checkpointing.optimizer import get_param_id_to_sharded_param_map, optim_state_to_sharding_state

    samples = corpus(folder)
    model = megatron_cpu.gpt_model(**LLAMA)
    adam = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
    losses = []
    for step in range(STEPS):
        if step == stop:
            state = adam.state_dict()
            ids = get_param_id_to_sharded_param_map(sharded(model), model.parameters())
            optim_state_to_sharding_state(state, ids, exclude_keys=("step",))
            saved = folder / f"theirs/iter_{step:07d}"
            save(model, saved, iteration=step, optimizer=dict(optimizer=state))
            damage(shutil.copytree(saved, folder / f"theirs/iter_{step + 1:07d}"))
        adam.zero_grad()
        logits = megatron_cpu.logits_of(model, samples[step][:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), samples[step][:, 1:].flatten())
        loss.backward()
        adam.step()
        losses.append(loss.item())
    file = recipe(folder, "llama")
    said = program.run("checkpoint", "import", folder / "theirs", "--recipe", file, "-o", folder / "run-llama")
    expect("of the optimizer's state" in said and f"step {stop}" in said, said)
    program.run("run", file, "--resume")
    close("moments", losses_of_run(folder / "run-llama"), losses[stop:])


def losses_of_run(run):
    return [json.loads(line)["losses"]["lm loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def close(what, found, expected):
    worst = max(abs(a - b) / b for a, b in zip(found, expected, strict=True))
    expect(worst <= 1e-5, f"{what}: losses are {found}, expected {expected}")
    print(f"{what}: losses {expected} off by {worst:.1e}", flush=True)


def loaded_by_megatron(saved, kind):
    """A model and an optimizer of Megatron's with what megahost exported."""
    from megatron.core import dist_checkpointing

    bf16 = kind == "bf16"
    model = megatron_cpu.gpt_model(seed=99, **LLAMA | (dict(bf16=True, params_dtype=torch.bfloat16) if bf16 else {}))
    model = model.bfloat16() if bf16 else model
    wrapped, optimizer = megatron_cpu.optimizer_of(model, LR, 0.1, distributed=kind != "fp32", bf16=bf16)
    wrapped.zero_grad_buffer()
    optimizer.step()  # torch.optim's has a state to load into after its first one only
    metadata = dist_checkpointing.load_content_metadata(str(saved))
    wanted = dict(model=sharded(model), optimizer=optimizer.sharded_state_dict(sharded(model), is_loading=True, metadata=metadata))
    state = dist_checkpointing.load(wanted, str(saved), strict="log_all")  # no _extra_state is written
    model.load_state_dict(state["model"], strict=False)
    optimizer.load_state_dict(state["optimizer"])
    return wrapped, optimizer, state, metadata


def trained_on(wrapped, optimizer, samples):
    losses = []
    for sample in samples:
        wrapped.zero_grad_buffer()
        optimizer.zero_grad()
        logits = megatron_cpu.logits_of(wrapped, sample[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), sample[:, 1:].flatten())
        loss.backward()
        wrapped.finish_grad_sync()
        expect(optimizer.step()[0], "Megatron's optimizer skipped a step")
        losses.append(loss.item())
    return losses


def optimizers(folder, kind, stop=3):
    """Adam's state of a run of ours at Megatron's optimizers, and back: of one that is distributed, of one that is not, and of
    the masters of 16-bit weights."""
    from megatron.core import dist_checkpointing

    samples = corpus(folder)
    save(megatron_cpu.gpt_model(**LLAMA), folder / "theirs/iter_0000000", iteration=0)
    adam = dict(use="adamw", lr=LR, weight_decay=0.1, clip_grad=0, betas=[0.9, 0.95], eps=1e-8)
    file = recipe(folder, "llama", optimizer=adam, precision="bf16" if kind == "bf16" else "fp32")
    run = folder / "run-llama"
    program.run("run", file, "--weights", folder / "theirs", "--set", f"train.exit_iters={stop}")
    program.run("checkpoint", "export", run, "--to", "torch_dist", "-o", folder / "ours", "--file-size", 0.06)
    expect("every checksum matches" in program.run("checkpoint", "verify", folder / "ours"), f"{kind}: verify")
    program.run("run", file, "--resume")
    expected = losses_of_run(run)[stop:]
    saved = folder / f"ours/iter_{stop:07d}"
    wrapped, optimizer, state, metadata = loaded_by_megatron(saved, kind)
    expect(state["args"].consumed_train_samples == stop * BATCH, f"{kind}: {state['args']}")
    expect(state["opt_param_scheduler"]["num_steps"] == stop * BATCH, f"{kind}: {state['opt_param_scheduler']}")
    if kind != "fp32":  # what that optimizer saves are all tensors of ours
        again = folder / f"again/iter_{stop:07d}"
        again.mkdir(parents=True)
        kept = dict(model=sharded(wrapped.module), args=state["args"], iteration=stop, checkpoint_version=3.0,
                    optimizer=optimizer.sharded_state_dict(sharded(wrapped.module), metadata=metadata))
        dist_checkpointing.save(kept, str(again), content_metadata=metadata)
        said = program.run("checkpoint", "diff", folder / "ours", folder / "again", "--all")
        expect(" 0 differ" in said and "only in" not in said, f"{kind}: Megatron's optimizer has other bits: {said}")
        buffers = folder / f"buffers/iter_{stop:07d}"  # the form that it saves by itself, in the order of its buffers
        buffers.mkdir(parents=True)
        metadata["distrib_optim_sharding_type"] = "dp_reshardable"
        kept["optimizer"] = optimizer.sharded_state_dict(sharded(wrapped.module), metadata=metadata)
        dist_checkpointing.save(kept | dict(model=sharded(wrapped.module)), str(buffers), content_metadata=metadata)
        if kind == "bf16":  # weights that have masters are not read
            for weights in saved.glob("__0_0.distcp"):
                weights.write_bytes(bytes(len(weights.read_bytes())))
        for name in ("ours", "again", "buffers"):
            program.run("checkpoint", "import", folder / name, "--recipe", file, "-o", folder / f"run-{name}")
            program.run("run", file, "--resume", "--set", f"checkpoint.dir={folder / f'run-{name}'}")
            found = losses_of_run(folder / f"run-{name}")
            expect(found == expected, f"{kind}, imported from {name}: losses are {found}, not {expected}")
    if kind != "bf16":
        if kind == "fp32":  # the distributed one of 0.16.1 loses the number of updates without Transformer Engine's Adam
            close(f"{kind} optimizer of Megatron", trained_on(wrapped, optimizer, samples[stop:]), expected)


def rows():
    """The rows of the table in docs/checkpoints.md that this test proves."""
    text = (pathlib.Path(__file__).parents[2] / "docs/checkpoints.md").read_text()
    for row in ("Megatron-LM `torch_dist` | `eval` and `run --weights` | logits within 1e-5 of their norm",
                "Megatron-LM `torch_dist`, multi-token prediction | `eval` | losses within 1e-6, gradients within 1e-4 of their norms",
                "Megatron-LM `torch_dist` | `checkpoint import --recipe`, `export --to torch_dist` | all bits of the weights",
                "`checkpoint export --to torch_dist` | `megatron.core.dist_checkpointing.load` | all bits of the weights",
                "Megatron-LM `torch_dist`, latent attention | `eval` and `run --weights` | logits within 1e-5 of their norm",
                "run, AdamW | `checkpoint export --to torch_dist`, `dist_checkpointing.load` | all bits of moments and masters; "
                "losses of the next steps within 1e-5",
                "Megatron-LM `torch_dist`, distributed optimizer, `fully_reshardable` | `checkpoint import --recipe`, `--resume` | "
                "all bits of moments and masters",
                "Megatron-LM `torch_dist`, distributed optimizer, `dp_reshardable` | `checkpoint import --recipe`, `--resume` | "
                "all bits of moments and masters",
                "Megatron-LM, a file for each rank | `eval` and `run --weights` | logits within 1e-5 of their norm"):
        expect(f"| {row} |\n" in text, f"docs/checkpoints.md has no row {row}")


if __name__ == "__main__":
    megatron_cpu.start()
    for name in THEIRS:
        with tempfile.TemporaryDirectory() as temporary:
            case(name, pathlib.Path(temporary))
    with tempfile.TemporaryDirectory() as temporary:
        moments(pathlib.Path(temporary))
    for kind in ("distributed", "fp32"):
        with tempfile.TemporaryDirectory() as temporary:
            optimizers(pathlib.Path(temporary), kind)
    rows()
    sys.exit("\n".join(problems) if problems else 0)
