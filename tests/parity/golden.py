"""Megatron's golden runs: its weights give its losses and gradient norms. The first update has rate 0, so the
second step's numbers are those of the initial weights too."""

import pathlib
import sys
import tempfile

import transformers

import golden_runs
import models
import program

PRINTED = 2e-6  # relative; Megatron prints 7 to 8 digits, and its own layouts agree to 1e-6

failed = 0
for name, case in golden_runs.CASES.items():
    weights, tokens, printed = golden_runs.load(name)
    model = transformers.AutoModelForCausalLM.from_config(case.config)
    loaded = model.load_state_dict(weights, strict=False)
    assert not loaded.unexpected_keys and loaded.missing_keys in ([], ["lm_head.weight"]), loaded
    for step in range(2):
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            models.save(case, model, tokens[step], folder)
            _, loss, gradients = program.evaluate(folder, logits=False)
        norm = float(program.norm(gradients.values()))
        print(f"{name}, step {step + 1}: loss {loss}, gradient norm {norm:.6f}; Megatron {printed[step]}")
        for ours, theirs in zip((loss, norm), printed[step]):
            failed += not abs(ours - theirs) <= PRINTED * theirs
sys.exit(failed and f"{failed} numbers differ")
