"""`transformers` as the judge of config.json: what it takes for absent keys, the forms of its versions 4 and 5, models that
are taken from a folder, and recipes that describe another model.

usage: hf_config.py [--all]   every model and every wrong field, and not only those that are evaluated and one of each family
"""

import itertools
import json
import pathlib
import sys
import tempfile

import transformers

import models
import program

# The logits of these are compared, too: windows in some layers, both scalings of latent and usual attention, dense layers,
# norms over all heads, parallel branches of one norm or two, neighbours that rotate, patterns of mixers.
EVALUATED = ("gpt2-untied-erf", "llama-yarn-set", "llama-tied-biases", "qwen2-windows", "olmo2-grouped", "pythia",
             "phi-tied-grouped", "phi3-grouped-window-share", "gemma3-seeing", "falcon-7b", "falcon-40b", "falcon-in-sequence-one-key", "cohere-untied-grouped-yarn", "cohere-norms-of-heads", "cohere2-untied-grouped", "smollm3-windows", "exaone4-windows",
             "falcon-rw", "phi3-longrope",
             "gemma-untied-linear", "gemma2-low-caps-linear", "gemma3-global-linear", "qwen3-moe-some-dense",
             "gpt-oss-low-yarn-files", "deepseek-v3-yarn", "mamba2-tied-biases", "nemotron-h", "nemotron-h-latent", "delta-net", "qwen3-next",
             "norms-after-sums")
TYPES = ("gpt2", "openai-gpt", "gpt_neox", "phi", "phi3", "falcon", "cohere", "cohere2", "smollm3", "exaone4", "llama", "mistral", "qwen2", "qwen3", "olmo2", "gemma", "gemma2", "gemma3_text", "mixtral", "qwen3_moe", "qwen2_moe",
         "gpt_oss", "deepseek_v3", "mamba2", "qwen3_next", "bert", "megatron-bert", "t5")
ALL = "--all" in sys.argv
problems = []


def check(condition, sentence):
    if not condition:
        problems.append(sentence)


def values(folder, config):
    """The section `model` that recipe from-hf makes of a config.json, without comments."""
    (folder / "config.json").write_text(json.dumps(config))
    lines = program.run("recipe", "from-hf", folder).splitlines()
    section = itertools.takewhile(lambda line: not line.startswith("["), lines[lines.index("[model]") + 1:])
    return sorted(line.split("  #")[0] for line in section if line)


def complete(folder, fields):
    """The section `model` of a recipe with these fields, completed with our defaults."""
    recipe = folder / "complete.toml"
    recipe.write_text("[model]\n" + "\n".join(fields) + "\n[train]\niters = 1\n[tokenizer]\nuse = 'null'\nvocab = 9\n"
                      "[data]\nuse = 'mock'\n")
    model = json.loads(program.run("recipe", "show", recipe, "--format", "json"))["model"]
    model.setdefault("kv_heads", model["heads"])
    model.setdefault("head_dim", model["hidden"] // model["heads"])
    model.setdefault("ffn_hidden", 4 * model["hidden"])  # where a family leaves it to us
    return model


def version4(config):
    """Rotary positions as transformers 4 wrote them."""
    config = dict(config)
    rope = dict(config.pop("rope_parameters"))
    if "full_attention" in rope:
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = dict(rope["full_attention"])
    neox = config["model_type"] == "gpt_neox"
    config["rotary_emb_base" if neox else "rope_theta"] = rope.pop("rope_theta")
    if neox:
        config["rotary_pct"] = rope.pop("partial_rotary_factor")
    elif "partial_rotary_factor" in rope:
        config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    kind = rope.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else dict(rope, type=kind)
    return config


with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    for name in TYPES:  # transformers' own defaults, written out, say what their absence says
        config = transformers.AutoConfig.for_model(name)
        config.save_pretrained(folder)
        whole = json.loads((folder / "config.json").read_text())
        said, absent = values(folder, whole), values(folder, {"model_type": name})
        said, absent = (complete(folder, said), complete(folder, absent)) if said != absent else ({}, {})
        for key in sorted(said.keys() | absent.keys()):
            check(said.get(key) == absent.get(key),
                  f"{name}: {key} is {said.get(key)} in transformers, {absent.get(key)} by an empty config.json")
        print(f"{name}: {len(said) or 'the same'} fields")

for case in models.CASES:
    evaluated = case.name in EVALUATED
    if not (ALL or evaluated):
        continue
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        if not evaluated:
            case.config.save_pretrained(folder / "model")
        else:
            model, ids = models.random_model(case), models.random_ids(case)[:, :models.SEQ]
            models.save(case, model, ids, folder, length=models.SEQ)
        file = folder / "model/config.json"
        config = json.loads(file.read_text())
        new = values(folder / "model", config)
        if "rope_parameters" in config:
            old = values(folder / "model", version4(config))
            check(old == new or complete(folder, old) == complete(folder, new), f"{case.name}: version 4's form says {old}, not {new}")
            file.write_text(json.dumps(config))
        if not evaluated:
            continue
        recipe = program.run("recipe", "from-hf", folder / "model", "-o", folder / "whole.lua") and folder / "whole.lua"
        # Losses that balance experts add to gradients, and are the recipe's choice.
        balance = ', balance = ["none"]' if case.name.startswith(("qwen3-moe", "qwen3-next", "gpt-oss")) else ""
        (folder / "short.toml").write_text(f"""
            precision = "fp32"
            model = {{ from = "{folder}/model", seq_length = {models.SEQ}{balance} }}
            tokenizer = {{ use = "null", vocab = {models.VOCAB} }}
            data.use = "mock"
            train.iters = 1
        """)
        length = ["--set", f"model.seq_length={models.SEQ}", "--set", "precision=fp32"]
        theirs = models.judge(model, ids)
        problems += [f"{case.name}, model.from: {problem}"
                     for problem in program.compare(program.evaluate(folder, "short.toml"), theirs)]
        printed = program.run("eval", recipe, "--weights", folder / "model", "--ids", folder / "ids.json", *length)
        check(abs(float(printed.split()[2]) - theirs[1]) <= 1e-5 * theirs[1],
              f"{case.name}, from-hf: {printed} instead of {theirs[1]}")
        print(f"{case.name}: {printed.splitlines()[0]}")

# Layers of Qwen3-Next are given as a list, or by an interval.
with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    transformers.Qwen3NextConfig().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    listed = values(folder, config)
    del config["layer_types"]
    pattern = "GEGEGE*E" * 12
    check(f'pattern = "{pattern}"' in listed and values(folder, config | dict(full_attention_interval=4)) == listed,
          f"qwen3_next: {listed}")
    (folder / "config.json").write_text(json.dumps(config | dict(layer_types=["chunked_attention"] * 48)))
    result = program.call("recipe", "from-hf", folder)
    check(result.returncode == 5 and "a layer is \"chunked_attention\"" in result.stderr, f"{result.returncode}, {result.stderr}")

WRONG = {  # what evaluated without a word
    "llama": [("norm_eps", "1e-3", "rms_norm_eps"), ("heads", 2, "num_attention_heads"), ("rope_base", 5e5, "rope_theta"),
              ("activation", "geglu", "hidden_act"), ("window", 7, "of a llama"), ("causal", "false", "of a llama")],
    "mistral": [("window", 9, "sliding_window")],
    "olmo2": [("qk_norm_over", "head", "of a olmo2"), ("norm_placement", "pre", "of a olmo2")],
    "gemma2": [("score_cap", 30, "attn_logit_softcapping"), ("logit_cap", 50, "final_logit_softcapping"),
               ("window_pattern", '["window"]', "layer_types"), ("score_dim", 24, "query_pre_attn_scalar")],
    "gemma3": [("scaled_embedding", "false", "of a gemma3_text"), ("score_dim", 24, "query_pre_attn_scalar"),
               ("window_rope_base", 500.0, "by rope_parameters.sliding_attention.rope_theta"), ("norm_placement", "pre", "of a gemma3_text")],
    "pythia": [("parallel_residual", "false", "use_parallel_residual"), ("rope_share", 0.5, "partial_rotary_factor"),
               ("norm_eps", "1e-3", "layer_norm_eps"), ("causal", "false", "of a gpt_neox")],
    "phi": [("shared_norm", "false", "of a phi"), ("head_bias", "false", "of a phi"), ("rope_share", 0.25, "partial_rotary_factor"),
            ("kv_heads", 2, "num_key_value_heads")],
    "falcon-7b": [("kv_heads", 8, "multi_query"), ("shared_norm", "false", "num_ln_in_parallel_attn"), ("bias", "true", "bias"),
                  ("rope_share", 0.5, "of a falcon")],
    "falcon-40b": [("kv_heads", 4, "num_kv_heads"), ("shared_norm", "true", "num_ln_in_parallel_attn"),
                   ("parallel_residual", "false", "parallel_attn")],
    "cohere": [("logit_scale", 1, "logit_scale"), ("rope_pairs", "halves", "of a cohere"), ("norm", "layernorm", "of a cohere"),
               ("shared_norm", "false", "of a cohere"), ("norm_eps", "1e-3", "layer_norm_eps")],
    "cohere2": [("rope_pattern", '["rope"]', "layer_types"), ("window", 9, "sliding_window")],
    "cohere-norms-of-heads": [("qk_norm_over", "head", "use_qk_norm"), ("qk_norm_kind", "rmsnorm", "use_qk_norm")],
    "smollm3": [("rope_pattern", '["rope", "none"]', "no_rope_layers")],
    "phi3-longrope": [("rope_long_factors", "[1, 1, 1, 1, 1, 2]", "long_factor"), ("rope_factor", 8, "max_position_embeddings")],
    "falcon-rw": [("positions", "none", "alibi")],
    "gpt2": [("norm_eps", "1e-3", "layer_norm_epsilon"), ("heads", 2, "n_head"), ("activation", "gelu", "activation_function")],
    "qwen3-moe": [("experts_per_token", 3, "num_experts_per_tok"), ("router_normalise", "false", "norm_topk_prob"),
                  ("capacity_factor", 1.0, "of a qwen3_moe")],
    "mamba2": [("mamba_least_step", 0.01, "time_step_limit"), ("mamba_heads", 6, "num_heads"), ("pattern", '"M-"', "of a mamba2")],
    "nemotron-h": [("mamba_state", 12, "ssm_state_size"), ("mamba_taps", 3, "conv_kernel"), ("pattern", '"M-MM-"', "layers_block_type")],
    "nemotron-h-latent": [("expert_latent", 24, "moe_latent_size"), ("router_scale", 1, "routed_scaling_factor"),
                          ("shared_hidden", 24, "moe_shared_expert_intermediate_size"), ("router", "topk_softmax", "of a nemotron_h"),
                          ("pattern", '"ME*EE"', "layers_block_type")],
    "delta-net": [("delta_heads", 4, "linear_num_value_heads"), ("delta_dim", 10, "linear_value_head_dim"),
                  ("norm", "rmsnorm", "of a qwen3_next"), ("pattern", '"G-*-"', "layer_types")],
    "qwen3-next": [("experts_per_token", 2, "num_experts_per_tok"), ("attention_gate", "false", "of a qwen3_next"),
                   ("shared_hidden", 24, "shared_expert_intermediate_size"), ("rope_share", 0.5, "partial_rotary_factor"),
                   ("router_normalise", "false", "norm_topk_prob"), ("pattern", '"GE*EGE"', "layer_types")],
    "gpt-oss": [("sinks", "false", "of a gpt_oss"), ("window", 9, "sliding_window"), ("rope_truncate", "true", "truncate"),
                ("activation", "swiglu", "hidden_act"), ("window_pattern", '["window"]', "layer_types"),
                ("rope_factor", 8, "rope_parameters.factor")],
    "deepseek-v3": [("router_scale", 1.5, "routed_scaling_factor"), ("router_groups_chosen", 3, "topk_group")],
}
for case in models.CASES:
    if case.name not in WRONG:
        continue
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        models.save(case, models.random_model(case), models.random_ids(case)[:, :models.SEQ], folder, length=models.SEQ)
        for field, value, key in WRONG[case.name][:None if ALL or case.name in ("llama", "qwen3-moe") else 1]:
            more = ["--set", "model.capacity_drop=position"] if field == "capacity_factor" else []
            result = program.call("eval", folder / "recipe.toml", "--weights", folder / "model", "--ids",
                                  folder / "ids.json", "--set", f"model.{field}={value}", *more)
            check(result.returncode == 5 and f"model.{field} is" in result.stderr and key in result.stderr,
                  f"{case.name} with {field} = {value}: status {result.returncode}, {result.stdout}{result.stderr}")

        if case.name == "llama":  # max_position_embeddings is 64, and a rotary model computes beyond
            for tokens in 64, 65:
                result = program.call("eval", folder / "recipe.toml", "--weights", folder / "model", "--ids",
                                      folder / "ids.json", "--set", f"model.seq_length={tokens}")
                told = "max_position_embeddings in" in result.stderr and "good for 64 tokens" in result.stderr
                check(result.returncode == 0 and told == (tokens > 64),
                      f"seq_length {tokens}: status {result.returncode}, {result.stderr}")

print("\n".join(problems))
sys.exit(len(problems) and f"{len(problems)} problems")
