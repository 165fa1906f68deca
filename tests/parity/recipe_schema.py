"""The JSON Schema of recipes, compared with a validator and against Taplo: every shipped recipe passes, every bad one whose
fault a schema can express does not."""

import json
import os
import pathlib
import subprocess
import sys
import sysconfig
import tempfile
import tomllib

import jsonschema

# Faults that lie between fields, between files or beyond JSON: `megahost recipe check` finds them, a schema cannot.
BEYOND = {
    # conditions between values
    "batch_data_parallel", "batch_micro", "both_decays", "both_lengths", "both_warmups", "context_sequence_length",
    "exchanged_heads", "expert_ranks", "heads_kv_heads", "heads_tensor", "hidden_heads", "interleaving_microbatches",
    "iters_in_a_run_of_samples", "kv_heads_tensor", "min_lr_above_lr", "missing_length", "more_stages_than_layers",
    "pipeline_layout_chunks", "pipeline_layout_even", "pipeline_layout_layers", "pipeline_layout_text",
    "rampup_incomplete", "rampup_uneven", "rank_order", "rewind_without_checkpoints", "rounding_nothing",
    "samples_below_batch", "samples_in_a_run_of_iters", "sequence_sequence_length", "sequence_without_tensor",
    "virtual_without_pipeline", "warmup_longer_than_decay", "warmup_longer_than_run", "weight_decay_start_constant",
    "zero_bubble_recompute", "zero_bubble_vee", "zero_bubble_virtual", "zero_with_pipeline",
    # other files
    "extends_itself", "extends_missing",
    # no number of JSON
    "infinite_rate",
    # no TOML, so that there is nothing to validate
    "syntax", "twice", "unclosed",
}

source = pathlib.Path(os.environ["MEGAHOST_SOURCE"])
failures = []


def megahost(*words):
    return subprocess.run([os.environ["MEGAHOST"], *words], check=True, capture_output=True, text=True).stdout


def expect(right, sentence):
    if not right:
        failures.append(sentence)


def fault(validator, tree):
    return next((error.message for error in validator.iter_errors(tree)), None)


def check_shipped(validator):
    recipes = sorted(file for file in (source / "recipes").iterdir() if file.suffix in (".lua", ".toml"))
    assert len(recipes) >= 4, recipes
    for file in recipes:
        if file.suffix == ".toml":
            found = fault(validator, tomllib.loads(file.read_text()))
            expect(found is None, f"{file.name} is refused: {found}")
        found = fault(validator, json.loads(megahost("recipe", "show", str(file), "--format", "json")))
        expect(found is None, f"{file.name}, resolved, is refused: {found}")


def check_bad(validator):
    files = sorted((source / "tests/recipe/bad").glob("*.toml"))
    assert len(files) >= 60, len(files)
    for file in files:
        try:
            tree = tomllib.loads(file.read_text())
        except tomllib.TOMLDecodeError:
            expect(file.stem in BEYOND, f"{file.name} is no TOML")
            continue
        found = fault(validator, tree)
        expect((found is None) == (file.stem in BEYOND), f"{file.name}: " + ("accepted" if found is None else found))


def check_cases(validator):
    """Faults and liberties that no recipe of the tree shows."""
    model = {"use": "gpt"}
    good = [
        {"model": model},
        {"model": {"preset": "gpt2-124m"}},
        {"model": {"use": "org.megahost.gpt/gpt", "layers": 2}},
        {"model": model, "parallel": {"data": "auto"}},
        {"model": model, "parallel": {"data": 2}},
        {"model": model, "device": {"use": "cpu"}, "parallel": {"schedule": {"use": "1f1b"}}},
        {"extends": "base.toml", "optimizer": {"momentum": 0.9}},
        {"extends": ["a", "b"], "model": {"layers": 3}},
        {"extends": "base.toml", "tokenizer": {"use": "null"}},
        {"preset": "70b-32"},
        {"preset": ["llama3-70b", "70b-32"], "parallel": {"data": 8}},
        {"model": model, "sweep": {"grid": {"optimizer.lr": [1e-4, 3e-4]}}},
    ]
    bad = [
        {},
        {"model": {}},
        {"model": {"layers": 2}},
        {"model": {"use": "gpt", "layers": 2.5}},
        {"model": model, "optimizer": {"momentum": 0.9}},
        {"model": model, "optimizer": {"use": "sgd", "betas": [0.9, 0.9]}},
        {"model": model, "tokenizer": {"use": "null"}},
        {"model": model, "parallel": {"data": "all"}},
        {"model": model, "extends": 3},
        {"model": model, "device": "gpu"},
        {"model": model, "device": {"use": "cpu", "peak": 1}},
        {"extends": "base.toml", "optimizer": {"use": "adamw", "momentum": 0.9}},
        {"extends": "base.toml", "optimizer": {"momentmu": 0.9}},
        {"extends": "base.toml", "modle": {}},
        {"preset": "70b-23"},
        {"preset": 3, "model": model},
        {"model": model, "sweep": {"gird": {}}},
    ]
    for tree in good:
        expect(fault(validator, tree) is None, f"refused: {tree}: {fault(validator, tree)}")
    for tree in bad:
        expect(fault(validator, tree) is not None, f"accepted: {tree}")


def check_taplo(text):
    """Taplo, which editors run, reads the same schema."""
    with tempfile.TemporaryDirectory() as folder:
        schema = pathlib.Path(folder, "recipe.schema.json")
        schema.write_text(text)
        taplo = pathlib.Path(sysconfig.get_path("purelib"), "bin", "taplo")
        for file, status in [("recipes/gpt2_124m.toml", 0), ("tests/recipe/bad/unknown_option.toml", 1)]:
            result = subprocess.run([taplo, "check", "--schema", schema.as_uri(), str(source / file)],
                                    capture_output=True, text=True, cwd=folder)
            expect((result.returncode != 0) == bool(status), f"taplo on {file}: {result.stderr}")


def main():
    text = megahost("recipe", "schema")
    schema = json.loads(text)
    jsonschema.Draft7Validator.check_schema(schema)
    validator = jsonschema.Draft7Validator(schema)
    check_shipped(validator)
    check_bad(validator)
    check_cases(validator)
    check_taplo(text)
    sys.exit("\n".join(failures) if failures else 0)


main()
