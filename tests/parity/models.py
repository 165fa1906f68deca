"""Tiny random Hugging Face models, the recipes that describe the same models, and the judge's numbers."""

import copy
import dataclasses
import json
import pathlib
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

SEQ = 33
BATCH = 3
VOCAB = 97


@dataclasses.dataclass
class Case:
    name: str
    config: transformers.PretrainedConfig
    use: str  # the architecture plugin
    model: dict  # its fields in a recipe
    shard: str = "1GB"  # size of the files that the weights are saved in
    dtype: torch.dtype = torch.float32  # dtype of the saved weights
    old_names: bool = False  # as in the hub's first files: masks among the weights, and of GPT-2 no prefix
    packed: bool = False  # experts in MXFP4, as OpenAI released GPT-OSS
    seeing: bool = False  # saved as the language model of one that sees images
    attention: str = "eager"  # transformers' implementation


def gpt2(name, recipe, saved=None, **changes):
    fields = dict(n_layer=3, n_embd=48, n_head=4, n_positions=SEQ, vocab_size=VOCAB, resid_pdrop=0, embd_pdrop=0,
                  attn_pdrop=0, bos_token_id=None, eos_token_id=None)
    model = dict(layers=3, hidden=48, heads=4, vocab=VOCAB)
    return Case(name, transformers.GPT2Config(**(fields | changes)), "gpt", model | recipe, **(saved or {}))


def llama(name, recipe, saved=None, config=transformers.LlamaConfig, **changes):
    fields = dict(num_hidden_layers=3, hidden_size=64, intermediate_size=112, num_attention_heads=8,
                  num_key_value_heads=8, max_position_embeddings=64, vocab_size=VOCAB, bos_token_id=None,
                  eos_token_id=None, tie_word_embeddings=False, rms_norm_eps=1e-6,
                  rope_parameters=dict(rope_type="default", rope_theta=10000.0))
    model = dict(layers=3, hidden=64, ffn_hidden=112, heads=8, vocab=VOCAB, norm_eps=1e-6)
    return Case(name, config(**(fields | changes)), "llama", model | recipe, **(saved or {}))


def olmo2(name, recipe, **changes):
    ours = dict(norm_placement="branch", qk_norm=True, qk_norm_over="all_heads")
    return llama(name, ours | recipe, config=transformers.Olmo2Config, **changes)


def gemma(name, recipe, saved=None, config=transformers.GemmaConfig, **changes):
    fields = dict(num_hidden_layers=3, hidden_size=64, intermediate_size=112, num_attention_heads=4, num_key_value_heads=2,
                  head_dim=24, max_position_embeddings=64, vocab_size=VOCAB, bos_token_id=None, eos_token_id=None,
                  pad_token_id=None)
    model = dict(layers=3, hidden=64, ffn_hidden=112, heads=4, kv_heads=2, head_dim=24, vocab=VOCAB)
    return Case(name, config(**(fields | changes)), "gemma", model | recipe, **(saved or {}))


def gemma2(name, recipe, saved=None, **changes):
    ours = dict(norm_placement="sandwich", score_dim=256, score_cap=50.0, logit_cap=30.0, window=8,
                window_pattern=["window", "global"])
    return gemma(name, ours | recipe, saved, config=transformers.Gemma2Config, **(dict(sliding_window=8) | changes))


def gemma3(name, recipe, saved=None, **changes):
    ours = dict(norm_placement="sandwich", qk_norm=True, rope_base=1e6, window_rope_base=10000.0, score_dim=256)
    return gemma(name, ours | recipe, saved, config=transformers.Gemma3TextConfig, **changes)


def phi3(name, recipe, saved=None, **changes):
    case = llama(name, dict(norm_eps=1e-5) | recipe, saved, config=transformers.Phi3Config,
                 **(dict(rms_norm_eps=1e-5, pad_token_id=None) | changes))
    case.use = "phi3"
    return case


def neox(name, recipe, saved=None, **changes):
    fields = dict(num_hidden_layers=3, hidden_size=64, intermediate_size=112, num_attention_heads=4,
                  max_position_embeddings=64, vocab_size=VOCAB, bos_token_id=None, eos_token_id=None)
    model = dict(layers=3, hidden=64, ffn_hidden=112, heads=4, vocab=VOCAB, positions="rope", rope_share=0.25,
                 activation="gelu", parallel_residual=True, tied=False)
    return Case(name, transformers.GPTNeoXConfig(**(fields | changes)), "gpt", model | recipe, **(saved or {}))


def phi(name, recipe, saved=None, **changes):
    fields = dict(num_hidden_layers=3, hidden_size=64, intermediate_size=112, num_attention_heads=4,
                  max_position_embeddings=64, vocab_size=VOCAB, bos_token_id=None, eos_token_id=None)
    model = dict(layers=3, hidden=64, ffn_hidden=112, heads=4, vocab=VOCAB, positions="rope", rope_share=0.5,
                 parallel_residual=True, shared_norm=True, head_bias=True, tied=False)
    return Case(name, transformers.PhiConfig(**(fields | changes)), "gpt", model | recipe, **(saved or {}))


def falcon(name, recipe, saved=None, **changes):
    fields = dict(num_hidden_layers=3, hidden_size=64, num_attention_heads=8, max_position_embeddings=64, vocab_size=VOCAB,
                  bos_token_id=None, eos_token_id=None)
    model = dict(layers=3, hidden=64, heads=8, vocab=VOCAB, positions="rope", activation="gelu", bias=False,
                 parallel_residual=True)
    return Case(name, transformers.FalconConfig(**(fields | changes)), "gpt", model | recipe, **(saved or {}))


def cohere(name, recipe, **changes):
    ours = dict(norm="layernorm_no_bias", parallel_residual=True, shared_norm=True, rope_pairs="adjacent", rope_base=10000.0,
                tied=True, logit_scale=0.0625, norm_eps=1e-5)
    fields = dict(tie_word_embeddings=True, layer_norm_eps=1e-5, rms_norm_eps=None, pad_token_id=None)
    return llama(name, ours | recipe, **(dict(config=transformers.CohereConfig) | fields | changes))


def cohere2(name, recipe, **changes):
    """Layers without a window do not rotate."""
    case = cohere(name, dict(layers=4, window=8, window_pattern=["window", "window", "window", "global"],
                             rope_pattern=["rope", "rope", "rope", "none"]) | recipe,
                  config=transformers.Cohere2Config, **(dict(num_hidden_layers=4, sliding_window=8) | changes))
    return case


def moe(name, recipe, config, saved=None, **changes):
    case = llama(name, dict(kv_heads=2, experts=4, experts_per_token=2, rope_base=1e6, balance=["none"]) | recipe, saved,
                 config=config, num_key_value_heads=2, rope_parameters=dict(rope_type="default", rope_theta=1e6),
                 **(dict(num_experts_per_tok=2) | changes))
    case.use = "moe"
    return case


def gpt_oss(name, recipe, saved=None, **changes):
    """Attention sinks, windows in every second layer, clamped gates, yarn whose bounds lie within pairs."""
    rope = dict(rope_type="yarn", rope_theta=150000.0, factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                original_max_position_embeddings=4096)
    fields = dict(head_dim=24, num_local_experts=4, num_experts_per_tok=2, sliding_window=8, rms_norm_eps=1e-5,
                  rope_parameters=rope, pad_token_id=None)
    ours = dict(kv_heads=2, head_dim=24, experts=4, experts_per_token=2, balance=["none"], norm_eps=1e-5, bias=True, sinks=True,
                activation="swiglu_clamped", window=8, window_pattern=["window", "global"], rope_base=150000.0,
                rope_scaling="yarn", rope_factor=32.0, rope_original_length=4096, rope_truncate=False)
    case = llama(name, ours | recipe, saved, config=transformers.GptOssConfig, num_key_value_heads=2, **(fields | changes))
    case.use = "moe"
    return case


def deepseek(name, recipe, experts=True, **changes):
    """Latent attention, the first layer dense; sigmoid scores with a bias, four groups of experts of which two are chosen."""
    fields = dict(n_routed_experts=8, num_experts_per_tok=4, n_group=4, topk_group=2, n_shared_experts=2,
                  moe_intermediate_size=40, first_k_dense_replace=1, routed_scaling_factor=2.5, norm_topk_prob=True,
                  q_lora_rank=24, kv_lora_rank=20, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10,
                  num_nextn_predict_layers=0)
    ours = dict(kv_rank=20, q_rank=24, head_dim=12, rope_head_dim=8, v_head_dim=10, first_dense=1, experts=8,
                experts_per_token=4, expert_hidden=40, shared_hidden=80, router="sigmoid", router_groups=4,
                router_groups_chosen=2, router_scale=2.5, balance=["bias"])
    ours = {key: value for key, value in (ours | recipe).items() if value is not None}
    case = llama(name, ours, config=transformers.DeepseekV3Config, **(fields | changes))
    case.use = "moe"
    return case


def mamba2(name, recipe, saved=None, **changes):
    """Its steps begin small, and two heads share what they read and write."""
    fields = dict(num_hidden_layers=3, hidden_size=48, num_heads=12, head_dim=8, state_size=10, n_groups=2, chunk_size=16,
                  vocab_size=VOCAB, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    ours = dict(pattern="M", layers=3, hidden=48, heads=12, mamba_heads=12, mamba_head_dim=8, mamba_state=10, mamba_groups=2,
                mamba_chunk=5, vocab=VOCAB)
    return Case(name, transformers.Mamba2Config(**(fields | changes)), "hybrid", ours | recipe, **(saved or {}))


def nemotron(name, pattern, recipe, saved=None, **changes):
    fields = dict(layers_block_type=transformers.NemotronHConfig._pattern_to_list(pattern), hidden_size=48,
                  intermediate_size=80, num_attention_heads=6, num_key_value_heads=2, head_dim=12, mamba_num_heads=8,
                  mamba_head_dim=6, ssm_state_size=10, n_groups=4, chunk_size=16, vocab_size=VOCAB, bos_token_id=None,
                  eos_token_id=None, pad_token_id=None)
    ours = dict(pattern=pattern, layers=len(pattern), hidden=48, ffn_hidden=80, heads=6, kv_heads=2, head_dim=12,
                mamba_heads=8, mamba_head_dim=6, mamba_state=10, mamba_groups=4, mamba_least_step=1e-3, mamba_chunk=7,
                vocab=VOCAB)
    return Case(name, transformers.NemotronHConfig(**(fields | changes)), "hybrid", ours | recipe, **(saved or {}))


# Fields that the mixtures of Nemotron-H below have in common.
SIGMOID_EXPERTS = dict(experts=6, experts_per_token=3, expert_hidden=24, shared_hidden=40, router="sigmoid", balance=["bias"])


def qwen3_next(name, pattern, recipe, saved=None, **changes):
    """Gated DeltaNet and attention with a gate, then mixtures and feed-forwards; a pair of letters is a layer of theirs."""
    mixers = {"G": "linear_attention", "*": "full_attention"}
    dense = [layer for layer, letter in enumerate(pattern[1::2]) if letter == "-"]
    fields = dict(num_hidden_layers=len(pattern) // 2, layer_types=[mixers[letter] for letter in pattern[::2]],
                  mlp_only_layers=dense, hidden_size=48, intermediate_size=80, num_attention_heads=4, num_key_value_heads=2,
                  head_dim=16, linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=10, linear_value_head_dim=8,
                  num_experts=6, num_experts_per_tok=3, moe_intermediate_size=24, shared_expert_intermediate_size=40,
                  vocab_size=VOCAB, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    ours = dict(pattern=pattern, layers=len(pattern), hidden=48, ffn_hidden=80, heads=4, kv_heads=2, head_dim=16, qk_norm=True,
                attention_gate=True, positions="rope", rope_share=0.25, norm="rmsnorm_1p", norm_eps=1e-6, activation="swiglu",
                delta_key_heads=2, delta_heads=6, delta_key_dim=10, delta_dim=8, delta_chunk=7, experts=6, experts_per_token=3,
                expert_hidden=24, shared_hidden=40, shared_gate=True, router="softmax_topk", router_normalise=True,
                balance=["none"], vocab=VOCAB)
    return Case(name, transformers.Qwen3NextConfig(**(fields | changes)), "hybrid", ours | recipe, **(saved or {}))


def delta_net(name, recipe, layers=2, **changes):
    """Qwen3-Next without its attention and its experts: gated DeltaNet, three value heads to a key head."""
    fields = dict(num_hidden_layers=layers, layer_types=["linear_attention"] * layers, num_experts=0, hidden_size=48,
                  intermediate_size=80, linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=10,
                  linear_value_head_dim=8, vocab_size=VOCAB, bos_token_id=None, eos_token_id=None, pad_token_id=None,
                  use_cache=False)  # transformers' cache wants a layer of attention
    ours = dict(pattern="G-", layers=2 * layers, hidden=48, ffn_hidden=80, heads=2, norm="rmsnorm_1p", norm_eps=1e-6,
                activation="swiglu", delta_key_heads=2, delta_heads=6, delta_key_dim=10, delta_dim=8, delta_chunk=7, vocab=VOCAB)
    return Case(name, transformers.Qwen3NextConfig(**(fields | changes)), "hybrid", ours | recipe)


CASES = [
    gpt2("gpt2", {}),
    gpt2("gpt2-old-names", {}, dict(old_names=True)),
    gpt2("gpt2-untied-erf", dict(tied=False, activation="gelu", norm_eps=1e-3, ffn_hidden=100), dict(shard="60KB"),
         tie_word_embeddings=False, activation_function="gelu", layer_norm_epsilon=1e-3, n_inner=100),
    llama("llama", {}),
    llama("llama-grouped-llama3",  # wavelengths below, between and above the bounds
          dict(kv_heads=2, head_dim=24, rope_base=500000.0, rope_scaling="llama3", rope_factor=8.0, rope_low_freq=1.0,
               rope_high_freq=4.0, rope_original_length=64),
          dict(shard="60KB"), num_key_value_heads=2, head_dim=24,
          rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
                               high_freq_factor=4.0, original_max_position_embeddings=64)),
    llama("llama-one-head-linear", dict(kv_heads=1, rope_scaling="linear", rope_factor=4.0), dict(dtype=torch.bfloat16),
          num_key_value_heads=1,
          rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0)),
    llama("llama-tied-biases", dict(kv_heads=4, tied=True, bias=True, norm_eps=1e-2), num_key_value_heads=4,
          tie_word_embeddings=True, attention_bias=True, mlp_bias=True, rms_norm_eps=1e-2),
    llama("llama-yarn",  # pairs that are kept, blended and stretched
          dict(kv_heads=4, rope_scaling="yarn", rope_factor=4.0, rope_original_length=256), num_key_value_heads=4,
          rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0,
                               original_max_position_embeddings=256)),
    llama("llama-yarn-set", dict(rope_scaling="yarn", rope_factor=8.0, rope_original_length=64, rope_beta_fast=16.0,
                                 rope_beta_slow=2.0, rope_attention=1.5),
          rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=8.0, beta_fast=16.0, beta_slow=2.0,
                               attention_factor=1.5, original_max_position_embeddings=64)),
    llama("mistral", dict(kv_heads=2, window=8, norm_eps=1e-5), config=transformers.MistralConfig,
          num_key_value_heads=2, sliding_window=8, rms_norm_eps=1e-5),
    llama("qwen2", dict(kv_heads=2, qkv_bias=True, rope_base=1e6), config=transformers.Qwen2Config,
          num_key_value_heads=2, rope_parameters=dict(rope_type="default", rope_theta=1e6)),
    llama("qwen2-windows", dict(kv_heads=4, qkv_bias=True, tied=True, window=8,
                                window_pattern=["global", "window", "window"]),
          config=transformers.Qwen2Config, num_key_value_heads=4, tie_word_embeddings=True, use_sliding_window=True,
          sliding_window=8, max_window_layers=1),
    llama("qwen2-every-third-global",
          dict(layers=4, kv_heads=4, qkv_bias=True, window=5, window_pattern=["window", "window", "global"]),
          config=transformers.Qwen2Config, num_hidden_layers=4, num_key_value_heads=4, use_sliding_window=True,
          sliding_window=5, layer_types=["sliding_attention", "sliding_attention", "full_attention",
                                         "sliding_attention"]),
    llama("qwen3", dict(kv_heads=2, head_dim=12, qk_norm=True, rope_base=1e6), config=transformers.Qwen3Config,
          num_key_value_heads=2, head_dim=12, rope_parameters=dict(rope_type="default", rope_theta=1e6)),
    llama("norms-on-branches", dict(kv_heads=4, qk_norm=True, norm_placement="branch"),
          config=transformers.Exaone4Config, num_key_value_heads=4, sliding_window=None,
          layer_types=["full_attention"] * 3),
    llama("exaone4-windows", dict(layers=4, kv_heads=4, qk_norm=True, norm_placement="branch", window=8,
                                  window_pattern=["window", "window", "window", "global"],
                                  rope_pattern=["rope", "rope", "rope", "none"]),
          config=transformers.Exaone4Config, num_hidden_layers=4, num_key_value_heads=4, sliding_window=8),
    llama("smollm3", dict(layers=4, kv_heads=2, tied=True, rope_pattern=["rope", "rope", "rope", "none"]),
          config=transformers.SmolLM3Config, num_hidden_layers=4, num_key_value_heads=2, tie_word_embeddings=True,
          pad_token_id=None),
    llama("smollm3-windows", dict(kv_heads=8, rope_pattern=["none", "rope", "none"], window=6,
                                  window_pattern=["window", "global", "window"]),
          config=transformers.SmolLM3Config, no_rope_layers=[0, 1, 0], use_sliding_window=True, sliding_window=6,
          pad_token_id=None),
    olmo2("olmo2", {}),
    olmo2("olmo2-grouped", dict(kv_heads=2, head_dim=12, norm_eps=1e-2, rope_base=5e5), num_key_value_heads=2, head_dim=12,
          rms_norm_eps=1e-2, rope_parameters=dict(rope_type="default", rope_theta=5e5)),
    gemma("gemma", {}),
    gemma("gemma-untied-linear", dict(tied=False, norm_eps=1e-3, rope_scaling="linear", rope_factor=4.0), dict(shard="60KB"),
          tie_word_embeddings=False, rms_norm_eps=1e-3, rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0)),
    gemma2("gemma2", {}),
    gemma2("gemma2-low-caps-linear",
           dict(score_dim=20, score_cap=1.5, logit_cap=2.0, window_pattern=["global", "window", "window"], rope_scaling="linear",
                rope_factor=4.0), dict(shard="60KB"),
           query_pre_attn_scalar=20, attn_logit_softcapping=1.5, final_logit_softcapping=2.0,
           layer_types=["full_attention", "sliding_attention", "sliding_attention"],
           rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0)),
    gemma3("gemma3", dict(window=8, window_pattern=["window", "window", "window"]), sliding_window=8),
    gemma3("gemma3-global-linear",
           dict(layers=4, window=5, window_pattern=["window", "global"], window_rope_base=500.0, rope_base=5e5, score_dim=20,
                rope_scaling="linear", rope_factor=8.0),
           dict(shard="60KB"), num_hidden_layers=4, sliding_window=5, query_pre_attn_scalar=20,
           layer_types=["sliding_attention", "full_attention"] * 2,
           rope_parameters=dict(sliding_attention=dict(rope_type="default", rope_theta=500.0),
                                full_attention=dict(rope_type="linear", rope_theta=5e5, factor=8.0))),
    gemma3("gemma3-seeing", dict(window=8, window_pattern=["window", "window", "window"]), dict(seeing=True), sliding_window=8),
    phi3("phi3", {}),
    phi3("phi3-grouped-window-share",
         dict(kv_heads=2, hidden=128, window=8, rope_share=0.75, rope_base=500.0, tied=True), dict(shard="60KB"),
         hidden_size=128, num_key_value_heads=2, sliding_window=8, tie_word_embeddings=True,
         rope_parameters=dict(rope_type="default", rope_theta=500.0, partial_rotary_factor=0.75)),
    phi3("phi3-longrope",  # beyond the first length, a share of each head rotated: Phi-4-mini
         dict(kv_heads=2, hidden=128, rope_share=0.75, tied=True, rope_scaling="longrope", rope_factor=4.0, rope_original_length=16,
              rope_short_factors=[1.0, 1.1, 1.2, 1.3, 1.4, 1.5], rope_long_factors=[1.1, 1.3, 2.0, 3.5, 8.0, 16.0]),
         hidden_size=128, num_key_value_heads=2, tie_word_embeddings=True, original_max_position_embeddings=16,
         rope_parameters=dict(rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.75,
                              short_factor=[1.0, 1.1, 1.2, 1.3, 1.4, 1.5], long_factor=[1.1, 1.3, 2.0, 3.5, 8.0, 16.0])),
    phi3("phi3-longrope-short-text",
         dict(rope_scaling="longrope", rope_factor=2.0, rope_original_length=48, rope_short_factors=[1.0, 1.2, 1.5, 2.0],
              rope_long_factors=[2.0, 3.0, 4.0, 5.0], rope_attention=1.3),
         max_position_embeddings=96, original_max_position_embeddings=48,
         rope_parameters=dict(rope_type="longrope", rope_theta=10000.0, short_factor=[1.0, 1.2, 1.5, 2.0],
                              long_factor=[2.0, 3.0, 4.0, 5.0], attention_factor=1.3)),
    neox("pythia", {}, dict(old_names=True)),
    neox("neox-in-sequence", dict(parallel_residual=False, tied=True, activation="gelu_tanh", norm_eps=1e-3, rope_share=1.0,
                                  rope_base=500.0), dict(shard="60KB"),
         use_parallel_residual=False, tie_word_embeddings=True, hidden_act="gelu_new", layer_norm_eps=1e-3,
         rope_parameters=dict(rope_type="default", rope_theta=500.0, partial_rotary_factor=1.0)),
    neox("neox-half-rotated-yarn", dict(rope_share=0.5, rope_scaling="yarn", rope_factor=4.0, rope_original_length=64),
         rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, partial_rotary_factor=0.5,
                              original_max_position_embeddings=64)),
    phi("phi", {}),
    phi("phi-tied-grouped", dict(tied=True, kv_heads=2, rope_share=0.25, rope_base=500.0, activation="gelu", norm_eps=1e-3),
        dict(shard="60KB"), tie_word_embeddings=True, num_key_value_heads=2, hidden_act="gelu", layer_norm_eps=1e-3,
        rope_parameters=dict(rope_type="default", rope_theta=500.0, partial_rotary_factor=0.25)),
    falcon("falcon-7b", dict(kv_heads=1, shared_norm=True)),
    falcon("falcon-40b", dict(kv_heads=2), dict(shard="60KB"), new_decoder_architecture=True, num_kv_heads=2),
    falcon("falcon-11b-biases", dict(kv_heads=4, shared_norm=True, tied=False, bias=True, ffn_hidden=112, norm_eps=1e-3,
                                     rope_base=500.0),
           new_decoder_architecture=True, num_ln_in_parallel_attn=1, num_kv_heads=4, tie_word_embeddings=False, bias=True,
           ffn_hidden_size=112, layer_norm_epsilon=1e-3, rope_parameters=dict(rope_type="default", rope_theta=500.0)),
    falcon("falcon-each-head-its-key", dict(shared_norm=True, activation="gelu_tanh"), multi_query=False,
           activation="gelu_new"),
    falcon("falcon-in-sequence-linear", dict(parallel_residual=False, rope_scaling="linear", rope_factor=4.0),
           multi_query=False, parallel_attn=False,
           rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0)),
    falcon("falcon-in-sequence-one-key", dict(parallel_residual=False, kv_heads=1, bias=True), parallel_attn=False, bias=True),
    # transformers' eager form adds the bias twice, its usual one once.
    falcon("falcon-rw", dict(parallel_residual=False, bias=True, positions="alibi_scaled"), dict(attention="sdpa"),
           multi_query=False, parallel_attn=False, bias=True, alibi=True),
    cohere("cohere", {}),
    cohere("cohere-untied-grouped-yarn",
           dict(kv_heads=2, head_dim=24, tied=False, logit_scale=0.4, norm_eps=1e-3, rope_base=500.0, rope_scaling="yarn",
                rope_factor=4.0, rope_original_length=256),
           num_key_value_heads=2, head_dim=24, tie_word_embeddings=False, logit_scale=0.4, layer_norm_eps=1e-3,
           rope_parameters=dict(rope_type="yarn", rope_theta=500.0, factor=4.0, original_max_position_embeddings=256)),
    cohere("cohere-norms-of-heads", dict(kv_heads=2, qk_norm=True, qk_norm_over="own_head", qk_norm_kind="layernorm_no_bias"),
           num_key_value_heads=2, use_qk_norm=True),
    cohere2("cohere2", {}),
    cohere2("cohere2-untied-grouped", dict(kv_heads=2, tied=False, logit_scale=0.4, norm_eps=1e-3, rope_base=500.0, window=5,
                                           window_pattern=["global", "window"], rope_pattern=["none", "rope"]),
            num_key_value_heads=2, tie_word_embeddings=False, logit_scale=0.4, layer_norm_eps=1e-3, sliding_window=5,
            layer_types=["full_attention", "sliding_attention"] * 2,
            rope_parameters=dict(rope_type="default", rope_theta=500.0)),
    moe("mixtral", dict(router="topk_softmax"), transformers.MixtralConfig, num_local_experts=4),
    moe("mixtral-window-files", dict(window=8, experts=5, experts_per_token=3), transformers.MixtralConfig,
        dict(shard="60KB"), num_local_experts=5, num_experts_per_tok=3, sliding_window=8),
    moe("qwen3-moe", dict(router="softmax_topk", router_normalise=True, qk_norm=True, head_dim=12, expert_hidden=40),
        transformers.Qwen3MoeConfig, num_experts=4, moe_intermediate_size=40, head_dim=12, norm_topk_prob=True,
        decoder_sparse_step=1, mlp_only_layers=[]),
    moe("qwen3-moe-some-dense", dict(router="softmax_topk", qk_norm=True, head_dim=12, expert_hidden=40,
                                     moe_pattern=["dense", "moe", "moe"]),
        transformers.Qwen3MoeConfig, num_experts=4, moe_intermediate_size=40, head_dim=12, norm_topk_prob=False,
        decoder_sparse_step=1, mlp_only_layers=[0]),
    moe("qwen2-moe-shared", dict(router="softmax_topk", qkv_bias=True, expert_hidden=40, shared_hidden=56,
                                 shared_gate=True),
        transformers.Qwen2MoeConfig, num_experts=4, moe_intermediate_size=40, shared_expert_intermediate_size=56,
        norm_topk_prob=False, decoder_sparse_step=1, mlp_only_layers=[]),
    gpt_oss("gpt-oss", {}),
    gpt_oss("gpt-oss-low-yarn-files",  # pairs that are kept, blended and stretched
            dict(experts=5, experts_per_token=3, ffn_hidden=40, window=5, window_pattern=["global", "global", "window"],
                 rope_base=500.0, rope_factor=4.0, rope_original_length=64, rope_attention=1.2, tied=True),
            dict(shard="60KB"), num_local_experts=5, num_experts_per_tok=3, intermediate_size=40, sliding_window=5,
            layer_types=["full_attention", "full_attention", "sliding_attention"], tie_word_embeddings=True,
            rope_parameters=dict(rope_type="yarn", rope_theta=500.0, factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                                 attention_factor=1.2, original_max_position_embeddings=64)),
    gpt_oss("gpt-oss-mxfp4", dict(ffn_hidden=96), dict(packed=True), intermediate_size=96),
    deepseek("deepseek-v3", {}),
    deepseek("deepseek-v3-yarn", dict(rope_scaling="yarn", rope_factor=8.0, rope_original_length=16, rope_mscale=0.7,
                                      rope_mscale_all_dim=1.3),
             rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=8.0, mscale=0.7, mscale_all_dim=1.3,
                                  original_max_position_embeddings=16)),
    deepseek("deepseek-v3-no-query-latent", dict(q_rank=None, v_head_dim=16), q_lora_rank=None, v_head_dim=16),
    mamba2("mamba2", {}),
    mamba2("mamba2-tied-biases", dict(tied=True, bias=True, mamba_conv_bias=False, mamba_groups=1, mamba_taps=3, norm_eps=1e-3,
                                      mamba_least_step=0.05, mamba_heads=8, mamba_head_dim=6, mamba_chunk=64),
           dict(shard="60KB"), tie_word_embeddings=True, use_bias=True, use_conv_bias=False, n_groups=1, conv_kernel=3,
           layer_norm_epsilon=1e-3, time_step_limit=(0.05, float("inf")), num_heads=8, head_dim=6, expand=1),
    nemotron("nemotron-h", "M-M*-", {}),
    nemotron("nemotron-h-relu-long-steps", "*M-", dict(activation="relu", mamba_least_step=0.1, mamba_taps=2),
             mlp_hidden_act="relu", time_step_min=0.1, conv_kernel=2),
    nemotron("nemotron-h-latent", "ME*-E", dict(SIGMOID_EXPERTS, experts_per_token=2, expert_latent=20, router_scale=2.5, router_groups=2),
             dict(shard="60KB"), n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=24,
             moe_shared_expert_intermediate_size=40, moe_latent_size=20, routed_scaling_factor=2.5, n_group=2, topk_group=1),
    nemotron("nemotron-h-experts", "E*M", dict(SIGMOID_EXPERTS, router_normalise=False), n_routed_experts=6, num_experts_per_tok=3,
             moe_intermediate_size=24, moe_shared_expert_intermediate_size=40, norm_topk_prob=False),
    qwen3_next("qwen3-next", "GE*EG-", {}),
    # Attention alone: behind a norm whose eps is small to it, the gradient of a decay is a small difference of large numbers.
    qwen3_next("qwen3-next-whole-heads-rotated", "*E*-", dict(rope_share=1.0, rope_base=500.0, router_normalise=False, tied=True,
                                                              norm_eps=1e-3),
               dict(shard="60KB"), norm_topk_prob=False, tie_word_embeddings=True, rms_norm_eps=1e-3,
               rope_parameters=dict(rope_type="default", rope_theta=500.0, partial_rotary_factor=1.0)),
    delta_net("delta-net", {}),
    delta_net("delta-net-tied-long-chunks", dict(tied=True, delta_taps=3, delta_chunk=64, norm_eps=1e-3), layers=1,
              tie_word_embeddings=True, linear_conv_kernel_dim=3, rms_norm_eps=1e-3),
    Case("norms-after-sums", transformers.OpenAIGPTConfig(
        n_layer=3, n_embd=48, n_head=4, n_positions=SEQ, vocab_size=VOCAB, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0),
        "gpt", dict(layers=3, hidden=48, heads=4, vocab=VOCAB, norm_placement="post")),
]


def random_model(case):
    torch.manual_seed(1234)
    case.config._attn_implementation = case.attention
    model = transformers.AutoModelForCausalLM.from_config(case.config)
    with torch.no_grad():
        for parameter in model.parameters():  # no bias 0, no norm weight 1, scores worth a softmax
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
            parameter.copy_(parameter.to(case.dtype))
        for name, parameter in model.named_parameters():
            if name.endswith("gate_up_proj"):  # GPT-OSS: some gates are beyond the bounds of 7
                parameter.mul_(8)
            elif name.endswith("self_attn.sinks"):  # and sinks that take a share
                parameter.mul_(8)
            if case.packed and name.endswith(("gate_up_proj", "down_proj")):
                parameter.copy_(from_mxfp4(*mxfp4_of(parameter)))
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):  # steers the choice of experts
                buffer.add_(torch.randn_like(buffer), alpha=0.1)
    return model.eval()


FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def mxfp4_of(weight):
    """Blocks [experts, out, in / 32, 16] of two values a byte and scales [experts, out, in / 32] of [experts, in, out]."""
    rows = weight.transpose(1, 2).unflatten(-1, (-1, 32))
    exponents = (rows.abs().amax(-1).log2().floor() - 2).clamp(-127, 127)  # the largest value is below 8
    scaled = rows / exponents.exp2().unsqueeze(-1)
    codes = (scaled.abs().unsqueeze(-1) - FP4).abs().argmin(-1) + 8 * (scaled < 0)
    return (codes[..., 0::2] + 16 * codes[..., 1::2]).to(torch.uint8), (exponents + 127).to(torch.uint8)


def from_mxfp4(blocks, scales):
    table = torch.cat([FP4, -FP4])
    values = torch.stack([table[(blocks & 15).int()], table[(blocks >> 4).int()]], -1).flatten(-2)
    return (values * (scales.float() - 127).exp2().unsqueeze(-1)).flatten(-2).transpose(1, 2)


def pack(folder):
    """Writes the experts of a saved GPT-OSS in MXFP4."""
    file, config = folder / "model.safetensors", folder / "config.json"
    packed = {}
    for name, tensor in load_file(file).items():
        if name.endswith(("gate_up_proj", "down_proj")):
            packed[name + "_blocks"], packed[name + "_scales"] = mxfp4_of(tensor)
        else:
            packed[name] = tensor
    save_file(packed, file)
    config.write_text(json.dumps(json.loads(config.read_text()) | {"quantization_config": {"quant_method": "mxfp4"}}))


def random_ids(case):
    torch.manual_seed(4321)
    return torch.randint(0, case.config.vocab_size, (BATCH, SEQ + 1))


def seeing(model):
    """A Gemma 3 that sees images, with this language model."""
    vision = dict(model_type="siglip_vision_model", hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
                  image_size=28, patch_size=14)
    whole = transformers.Gemma3ForConditionalGeneration(
        transformers.Gemma3Config(text_config=model.config.to_dict(), vision_config=vision, mm_tokens_per_image=4))
    whole.model.language_model.load_state_dict(model.model.state_dict())
    return whole


def save(case, model, ids, folder, length=None):
    """A Hugging Face folder `model`, `ids.json` and `recipe.toml` in a folder; the last id is only a label unless the
    recipe's length is given."""
    folder = pathlib.Path(folder)
    (seeing(model) if case.seeing else copy.deepcopy(model)).to(case.dtype).save_pretrained(folder / "model", max_shard_size=case.shard)
    if case.old_names:
        file = folder / "model/model.safetensors"
        weights = {name.removeprefix("transformer."): tensor for name, tensor in load_file(file).items()}
        masks = {}
        for i in range(case.config.num_hidden_layers):
            attention = f"h.{i}.attn" if case.config.model_type == "gpt2" else f"gpt_neox.layers.{i}.attention"
            masks[f"{attention}.bias"] = torch.ones(1, 1, SEQ, SEQ, dtype=torch.bool).tril()
            masks[f"{attention}.masked_bias"] = torch.tensor(-1e4)
        save_file(weights | masks, file)
    if case.packed:
        pack(folder / "model")
    (folder / "ids.json").write_text(json.dumps(ids.tolist()))
    fields = dict(use=case.use, seq_length=length or ids.size(1) - 1) | case.model
    lines = [f"{key} = {json.dumps(value)}" for key, value in fields.items()]
    (folder / "recipe.toml").write_text("\n".join([
        f'name = "{case.name}"', 'precision = "fp32"', "[model]", *lines, "[optimizer]", 'use = "adamw"', "[batch]",
        f"global = {ids.size(0)}", "[tokenizer]", 'use = "null"', f"vocab = {case.config.vocab_size}", "[data]",
        'use = "mock"', "[train]", "iters = 1", ""]))


def judge(model, ids):
    """The judge's logits after every id [batch, seq, vocab], mean loss, and gradients by name."""
    return judge_samples(model, ids, ids[:, 1:])


def judge_samples(model, ids, labels):
    """Same, of samples whose last label need not be one of their ids."""
    logits = model(ids).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :labels.size(1)].flatten(0, 1), labels.flatten())
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    if model.config.model_type in ("gpt_neox", "nemotron_h") or any(".experts." in name for name in gradients):
        gradients = as_saved(model)
    return logits.detach(), loss.item(), gradients


def as_saved(model):
    """Gradients by the names of files, which hold experts one by one and call some tensors otherwise."""
    holder = copy.deepcopy(model)
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        for ours, theirs in zip(holder.parameters(), model.parameters()):
            ours.copy_(theirs.grad)
        holder.save_pretrained(folder)
        saved = load_file(pathlib.Path(folder) / "model.safetensors")
        return {name: gradient for name, gradient in saved.items() if not name.endswith("correction_bias")}
