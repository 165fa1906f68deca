"""Megatron-LM's checkpoints of BERT, T5 and hybrids, both ways: what megatron-core 0.16.1 saved gives its losses here, and is saved
again with the same bits; what megahost exports, Adam's state of a run too, its dist_checkpointing.load reads. Files of two
tensor-parallel ranks, too."""

import json
import pathlib
import re
import sys
import tempfile

import torch
from safetensors.torch import load_file

import megatron_cpu
import program
import torch_dist
from torch_dist import expect, problems, sharded

BATCH, LENGTH, DECODER_LENGTH, LR = 2, 32, 24, 1e-3
VOCAB = 276  # of bytes, special tokens and 15 sentinels
SIZES = dict(hidden_size=48, num_attention_heads=4, ffn_hidden_size=100)
MIXERS = dict(mamba_num_heads=8, mamba_head_dim=12, mamba_num_groups=2, mamba_state_dim=16)


def hybrid(**fields):
    from megatron.core.activations import squared_relu

    return megatron_cpu.hybrid_model("MM-*M", VOCAB, LENGTH, num_query_groups=2, add_bias_linear=False, activation_func=squared_relu,
                                     **MIXERS, **SIZES, **fields)


def hybrid_of_experts(**fields):
    from megatron.core.activations import squared_relu
    from megatron.core.transformer.moe import moe_utils

    moe_utils.te_general_gemm = None  # a name that it has only with Transformer Engine
    return megatron_cpu.hybrid_model("M*ME", VOCAB, LENGTH, add_bias_linear=False, activation_func=squared_relu, num_moe_experts=4,
                                     moe_router_topk=2, moe_ffn_hidden_size=40, moe_router_load_balancing_type="none",
                                     moe_token_dispatcher_type="allgather", **MIXERS, **SIZES, **fields)


THEIRS = {
    "bert": lambda **fields: megatron_cpu.bert_model(VOCAB, LENGTH, num_layers=3, **SIZES, **fields),
    "bert without pairs": lambda **fields: megatron_cpu.bert_model(VOCAB, LENGTH, pairs=False, num_layers=3, **SIZES, **fields),
    "t5": lambda **fields: megatron_cpu.t5_model(VOCAB, LENGTH, encoder_layers=3, num_layers=2, **SIZES, **fields),
    "t5 with rotary positions": lambda **fields: megatron_cpu.t5_model(VOCAB, LENGTH, encoder_layers=3, num_layers=2,
                                                                       positions="rope", **SIZES, **fields),
    "hybrid": hybrid,
    "hybrid with experts": hybrid_of_experts,
}
BERT = dict(use="bert", layers=3, hidden=48, heads=4, ffn_hidden=100, norm_placement="pre", norm_eps=1e-5, activation="gelu",
            seq_length=LENGTH, vocab=VOCAB)
T5 = dict(use="t5", encoder_layers=3, layers=2, hidden=48, heads=4, ffn_hidden=100, norm="layernorm", norm_eps=1e-5, activation="gelu",
          positions="learned", bias=True, encoder_length=LENGTH, seq_length=DECODER_LENGTH, vocab=VOCAB)
HYBRID = dict(use="hybrid", hidden=48, heads=4, ffn_hidden=100, mamba_heads=8, mamba_head_dim=12, mamba_groups=2, mamba_state=16,
              seq_length=LENGTH, vocab=VOCAB)
OURS = {
    "bert": BERT,
    "bert without pairs": BERT | dict(pair_head=False, token_types=0),
    "t5": T5,
    "t5 with rotary positions": T5 | dict(positions="rope"),
    "hybrid": HYBRID | dict(pattern="MM-*M", layers=5, kv_heads=2),
    "hybrid with experts": HYBRID | dict(pattern="M*ME", layers=4, experts=4, experts_per_token=2, expert_hidden=40, balance=["none"]),
}
DATA = {"bert": dict(use="bert", short_seq_prob=0, whole_words=False), "t5": dict(use="t5", mask_prob=0.3), "hybrid": dict(use="text")}


def model_of(name, seed=5, **fields):
    return megatron_cpu.randomize(THEIRS[name](**fields), seed)


def arrays_of(name):
    generator = torch.Generator().manual_seed(1)

    def draw(low, high, length):
        return torch.randint(low, high, (BATCH, length), generator=generator)

    if name.startswith("t5"):
        texts = draw(1, VOCAB, LENGTH)
        ended = torch.arange(LENGTH) >= torch.tensor([[LENGTH], [20]])
        return dict(encoder_tokens=texts * ~ended, encoder_segments=ended.long(), tokens=draw(1, VOCAB, DECODER_LENGTH),
                    labels=draw(0, VOCAB, DECODER_LENGTH), segments=torch.zeros(BATCH, DECODER_LENGTH, dtype=torch.long))
    if not name.startswith("bert"):
        return dict(tokens=draw(0, VOCAB, LENGTH), labels=draw(0, VOCAB, LENGTH))
    place = torch.arange(LENGTH)
    ended = place >= torch.tensor([[LENGTH], [25]])
    arrays = dict(tokens=draw(0, VOCAB, LENGTH), labels=draw(0, VOCAB, LENGTH), segments=ended.long(),
                  token_types=((place >= 11) & ~ended).long(), loss_mask=((draw(0, 4, LENGTH) == 0) & ~ended).float())
    if name == "bert":
        first = (place == 0).long()
        arrays |= dict(order_labels=first * torch.tensor([[0], [1]]), order_loss_mask=first.expand(BATCH, LENGTH).float())
    return arrays


def their_loss(name, model, arrays):
    """The sum of all losses, with its gradients."""
    from megatron.core.datasets.t5_dataset import T5MaskedWordPieceDataset

    model.zero_grad()
    cross_entropy = torch.nn.functional.cross_entropy
    if name.startswith("t5"):
        masks = T5MaskedWordPieceDataset.config_attention_mask(arrays["encoder_tokens"], arrays["tokens"], None, None, use_local=True)
        loss = model(arrays["encoder_tokens"], arrays["tokens"], *masks, lm_labels=arrays["labels"]).mean()
    elif name.startswith("bert"):
        pairs = name == "bert"
        each, classes = model(arrays["tokens"], 1 - arrays["segments"], tokentype_ids=arrays["token_types"] if pairs else None,
                              lm_labels=arrays["labels"])
        loss = (each * arrays["loss_mask"]).sum() / arrays["loss_mask"].sum()
        loss = loss + cross_entropy(classes, arrays["order_labels"][:, 0]) if pairs else loss
    else:
        loss = cross_entropy(megatron_cpu.logits_of(model, arrays["tokens"]).flatten(0, 1), arrays["labels"].flatten())
    loss.backward()
    return loss.item()


def recipe(folder, name, **sections):
    """Trained on the guide of checkpoints."""
    file = folder / "recipe.json"
    corpus = DATA[OURS[name]["use"]] | (dict(pair="none") if name == "bert without pairs" else {})
    text = pathlib.Path(__file__).parents[2] / "docs/checkpoints.md"
    given = dict(name="run", model=OURS[name], tokenizer=dict(use="byte", special=True, extra_ids=15), precision="fp32",
                 data=corpus | dict(paths=[str(text)], split=[1, 0, 0]), lr_schedule=dict(use="constant"),
                 optimizer=dict(use="adamw", lr=LR, weight_decay=0.1, clip_grad=0, betas=[0.9, 0.95], eps=1e-8),
                 batch=dict(**{"global": BATCH}, micro=BATCH), train=dict(iters=2), checkpoint=dict(dir=str(folder / "run")))
    file.write_text(json.dumps(given | sections))
    return file


def joined(gradients, name):
    """A gradient by the name of their parameter, which ours are parts of where a mixer joins them."""
    parts = [f"{name}.{part}" for part in ("z", "x", "B", "C", "dt")]
    return gradients[name] if name in gradients else torch.cat([gradients[part] for part in parts if part in gradients])


def compare(name, model, file, weights, folder):
    """Losses and all gradients."""
    arrays = arrays_of(name)
    expected = their_loss(name, model, arrays)
    (folder / "ids.json").write_text(json.dumps({key: value.tolist() for key, value in arrays.items()}))
    out = folder / "gradients.safetensors"
    said = program.run("eval", file, "--weights", weights, "--ids", folder / "ids.json", "--gradients", out)
    found = sum(map(float, re.findall(r"loss (\d+\.\d+)", said)))
    expect(abs(found - expected) <= 1e-6 * expected, f"{name}: the loss is {found}, Megatron's {expected}")
    gradients = load_file(out)
    norm = program.norm([parameter.grad for parameter in model.parameters()])
    worst, parameters = 0, dict(model.named_parameters())
    for key, parameter in parameters.items():
        error = program.norm([joined(gradients, key.removeprefix("lm_head.") if "output" in key else key) - parameter.grad])
        worst = max(worst, error / max(program.norm([parameter.grad]), program.FLOOR * norm))
    expect(worst <= program.GRADIENT, f"{name}: gradients differ by {worst:.1e} of their norms")
    print(f"{name}: loss {found} against {expected}, gradients off by {worst:.1e}", flush=True)


def read_back(name, model, folder, arrays):
    """Loads what megahost exported into a model of other values, which then has the same loss."""
    from megatron.core import dist_checkpointing

    other = model_of(name, seed=99)
    loaded = dist_checkpointing.load(dict(model=sharded(other)), str(folder), strict="log_all")["model"]  # no _extra_state is written
    other.load_state_dict({key: value for key, value in loaded.items() if torch.is_tensor(value)}, strict=False)
    for (key, found), expected in zip(other.state_dict().items(), model.state_dict().values(), strict=True):
        expect(not torch.is_tensor(found) or torch.equal(found, expected), f"{name}: {key} has other bits in {folder}")
    expect(their_loss(name, other, arrays) == their_loss(name, model, arrays), f"{name}: the exported model has another loss")


TWO = """
import pathlib, sys, torch
sys.path.insert(0, sys.argv[4])
import megatron_cpu
rank, folder, name = int(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
megatron_cpu.start(rank, 2, folder / "meet", tensor=2)
import argparse, os
import torch_dist_models as cases
from megatron.core import dist_checkpointing
model = cases.model_of(name, seed=7)
loaded = dist_checkpointing.load(dict(model=cases.sharded(model)), str(folder / "theirs/iter_0000003"))["model"]
model.load_state_dict(loaded)
place = folder / f"legacy/iter_0000003/mp_rank_{rank:02d}"
place.mkdir(parents=True)
torch.save(dict(model=model.state_dict(), checkpoint_version=3.0, iteration=3, args=argparse.Namespace()), place / "model_optim_rng.pt")
torch.distributed.barrier()
os._exit(0)
"""


def optimizer_state(name, folder, file):
    """Adam's state of a run of ours: all tensors that Megatron's optimizer loads and saves again are ours, and import has them back."""
    from megatron.core import dist_checkpointing

    run, ours = folder / "run", folder / "moments"
    program.run("run", file, "--weights", folder / "theirs", "--run-dir", run)
    program.run("checkpoint", "export", run, "--to", "torch_dist", "-o", ours)
    saved = ours / "iter_0000002"
    model = model_of(name, seed=99)
    wrapped, optimizer = megatron_cpu.optimizer_of(model, LR, 0.1, distributed=True)
    wrapped.zero_grad_buffer()
    optimizer.step()  # torch.optim's has a state to load into after its first one only
    metadata = dist_checkpointing.load_content_metadata(str(saved))
    wanted = dict(model=sharded(model), optimizer=optimizer.sharded_state_dict(sharded(model), is_loading=True, metadata=metadata))
    state = dist_checkpointing.load(wanted, str(saved), strict="log_all")
    model.load_state_dict({key: value for key, value in state["model"].items() if torch.is_tensor(value)}, strict=False)
    optimizer.load_state_dict(state["optimizer"])
    forms = ("fully_reshardable",) if "hybrid" in name else ("fully_reshardable", "dp_reshardable")
    for form in forms:
        metadata["distrib_optim_sharding_type"] = form
        again = folder / form / "iter_0000002"
        again.mkdir(parents=True)
        kept = dict(model=sharded(model), args=state["args"], iteration=2, checkpoint_version=3.0,
                    optimizer=optimizer.sharded_state_dict(sharded(model), metadata=metadata))
        dist_checkpointing.save(kept, str(again), content_metadata=metadata)
        said = program.run("checkpoint", "diff", ours, folder / form, "--all")
        expect(" 0 differ" in said and "only in" not in said, f"{name}: Megatron's optimizer has other bits in {form}: {said}")
    program.run("checkpoint", "import", folder / "fully_reshardable", "--recipe", file, "-o", folder / "back")
    said = program.run("checkpoint", "diff", run, folder / "back")
    expect(" 0 differ" in said and "only in" not in said, f"{name}: import has other bits: {said}")


def case(name, folder):
    model = model_of(name)
    torch_dist.save(model, folder / "theirs/iter_0000003")
    file = recipe(folder, name)
    compare(name, model, file, folder / "theirs", folder)
    program.run("checkpoint", "import", folder / "theirs", "--recipe", file, "-o", folder / "imported")
    program.run("checkpoint", "export", folder / "imported", "--to", "torch_dist", "-o", folder / "ours")
    read_back(name, model, folder / "ours/iter_0000003", arrays_of(name))
    said = program.run("checkpoint", "diff", folder / "theirs", folder / "ours")
    expect("0 differ" in said and "only in" not in said, f"{name}: the round trip changed bits: {said}")
    torch_dist.two_ranks(name, folder, TWO)
    compare(name, model, file, folder / "legacy", folder)
    optimizer_state(name, folder, file)


def rows():
    """The rows of the table in docs/checkpoints.md that this test proves."""
    text = (pathlib.Path(__file__).parents[2] / "docs/checkpoints.md").read_text()
    models, losses = ": BERT, T5, hybrids of Mamba-2", "losses within 1e-6, gradients within 1e-4 of their norms"
    for row in (f"Megatron-LM `torch_dist`{models} | `eval` and `run --weights` | {losses}",
                f"Megatron-LM `torch_dist`{models} | `checkpoint import --recipe`, `export --to torch_dist` | all bits of the weights",
                f"`checkpoint export --to torch_dist`{models} | `megatron.core.dist_checkpointing.load` | all bits of the weights, the same losses",
                f"run, AdamW{models} | `checkpoint export --to torch_dist`, Megatron's distributed optimizer, `checkpoint import --recipe` | "
                "all bits of weights and moments",
                f"Megatron-LM, a file for each rank{models} | `eval` and `run --weights` | {losses}"):
        expect(f"| {row} |\n" in text, f"docs/checkpoints.md has no row {row}")


if __name__ == "__main__":
    megatron_cpu.start()
    for name in sys.argv[1:] or THEIRS:
        with tempfile.TemporaryDirectory() as temporary:
            case(name, pathlib.Path(temporary))
    rows()
    sys.exit("\n".join(problems) if problems else 0)
