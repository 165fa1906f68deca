"""Megatron's golden runs as Hugging Face folders: the weights' names and packings translated."""

import pathlib
import re

import safetensors.torch
import torch

from models import gpt2, llama

GOLDEN = pathlib.Path(__file__).parent / "golden"
HIDDEN, HEADS, LAYERS = 64, 8, 4

CASES = {
    "gpt": gpt2("megatron-gpt", dict(layers=LAYERS, hidden=HIDDEN, heads=HEADS, vocab=256, activation="gelu"),
                n_layer=LAYERS, n_embd=HIDDEN, n_head=HEADS, n_positions=32, vocab_size=256,
                activation_function="gelu"),
    "llama": llama("megatron-llama", dict(layers=LAYERS, kv_heads=4, ffn_hidden=160, vocab=256, norm_eps=1e-5),
                   num_hidden_layers=LAYERS, num_key_value_heads=4, intermediate_size=160, vocab_size=256,
                   rms_norm_eps=1e-5),
}


def unpack_qkv(packed, kv_heads):
    """Rows grouped by kv head (its q heads, its k, its v) -> q, k, v."""
    width = HIDDEN // HEADS
    queries = HEADS // kv_heads
    grouped = packed.view(kv_heads, queries + 2, width, *packed.shape[1:])
    parts = grouped[:, :queries], grouped[:, queries], grouped[:, queries + 1]
    return [part.reshape(-1, *packed.shape[1:]) for part in parts]


def to_gpt2(theirs):
    names = {"embedding.word_embeddings.weight": "transformer.wte.weight",
             "embedding.position_embeddings.weight": "transformer.wpe.weight",
             "decoder.final_layernorm": "transformer.ln_f", "decoder.layers": "transformer.h",
             "input_layernorm": "ln_1", "pre_mlp_layernorm": "ln_2", "self_attention.linear_qkv": "attn.c_attn",
             "self_attention.linear_proj": "attn.c_proj", "linear_fc1": "c_fc", "linear_fc2": "c_proj"}
    ours = {}
    for name, value in theirs.items():
        if "linear_qkv" in name:
            value = torch.cat(unpack_qkv(value, HEADS))
        if "linear" in name and name.endswith("weight"):
            value = value.T.contiguous()
        for old, new in names.items():
            name = name.replace(old, new)
        ours[name] = value
    return ours


def to_llama(theirs):
    names = {"embedding.word_embeddings": "model.embed_tokens", "decoder.final_layernorm": "model.norm",
             "output_layer": "lm_head", "decoder.layers": "model.layers",
             "pre_mlp_layernorm": "post_attention_layernorm", "self_attention.linear_proj": "self_attn.o_proj",
             "linear_fc2": "down_proj"}
    ours = {}
    for name, value in theirs.items():
        for old, new in names.items():
            name = name.replace(old, new)
        if "linear_qkv" in name:
            for part, rows in zip("qkv", unpack_qkv(value, 4)):
                ours[name.replace("self_attention.linear_qkv", f"self_attn.{part}_proj")] = rows
        elif "linear_fc1" in name:
            for part, rows in zip(("gate", "up"), value.chunk(2)):
                ours[name.replace("linear_fc1", f"{part}_proj")] = rows.contiguous()
        else:
            ours[name] = value
    return ours


def load(name):
    """Weights under Hugging Face's names, tokens [steps, samples, 33], and per step (loss, gradient norm)."""
    weights = safetensors.torch.load_file(GOLDEN / f"{name}.safetensors")
    tokens = weights.pop("tokens")
    lines = (GOLDEN / f"{name}.txt").read_text()
    printed = [(float(a), float(b)) for a, b in re.findall(r"lm loss (\S+) grad norm (\S+)", lines)]
    return (to_gpt2 if name == "gpt" else to_llama)(weights), tokens, printed
