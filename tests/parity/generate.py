"""`transformers` as the judge of generation: the same weights write the same tokens, with and without the cache."""

import json
import pathlib
import sys
import tempfile

import torch

import models
import program

TOKENS = 20
NAMES = ("gpt2-old-names", "llama-grouped-llama3", "mistral", "qwen2-every-third-global", "qwen3", "olmo2-grouped", "pythia",
         "phi", "phi3-longrope-short-text", "falcon-7b", "falcon-40b", "falcon-rw", "smollm3-windows", "cohere",
         "cohere-norms-of-heads", "cohere2", "gemma2", "gpt-oss", "norms-after-sums")

failed = 0
for case in models.CASES:
    if case.name not in NAMES:
        continue
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        model = models.random_model(case)
        ids = models.random_ids(case)
        models.save(case, model, ids, folder)
        prompt = ids[:1, :10]
        with torch.no_grad():
            theirs = prompt
            for _ in range(TOKENS):
                theirs = torch.cat([theirs, model(theirs).logits[:, -1:].argmax(-1)], 1)
        for cache in [], ["--no-cache"]:
            printed = program.run("generate", folder / "model", "--recipe", folder / "recipe.toml", "--temperature", 0,
                                  "--prompt", " ".join(map(str, prompt[0].tolist())), "--tokens", TOKENS, "--json", *cache)
            ours = json.loads(printed)
            same = ours["ids"] == theirs[0, 10:].tolist() and ours["cached"] == (not cache)
            print(case.name, *cache, "the same" if same else f"{ours} instead of {theirs[0, 10:].tolist()}")
            failed += not same
sys.exit(failed and f"{failed} texts differ")
