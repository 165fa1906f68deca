#!/usr/bin/env python3
"""Commands that ask trained encoders: what a run says of spans, hints of the command that fits, shared work of `embed`, recipes of folders."""

import json
import os
import pathlib
import subprocess
import tempfile

PROGRAM, SOURCE = os.environ["MEGAHOST"], os.environ["MEGAHOST_SOURCE"]
SIZES = "layers = 2, hidden = 32, heads = 2, seq_length = 32"
BYTES = '{ use = "byte", special = true, extra_ids = 16 }'


def call(*words):
    result = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True)
    return result.returncode, result.stdout + result.stderr


def run(*words):
    status, said = call(*words)
    assert status == 0, said
    return said


def trained(folder, name, model, data, batch="{ global = 4, micro = 4 }"):
    """A run of two steps on the guide of models."""
    recipe = folder / f"{name}.lua"
    recipe.write_text(f'''return {{ model = {{ use = "{name}", {SIZES}, {model} }}, tokenizer = {BYTES}, batch = {batch}, train = {{ iters = 2 }},
      data = {{ {data}, paths = {{ "{SOURCE}/docs/models.md" }} }}, optimizer = {{ use = "adamw", lr = 1e-3 }} }}''')
    said = run("run", recipe, "--run-dir", folder / name)
    return recipe, folder / name, said


def check_refused(words, *parts):
    status, said = call(*words)
    assert status != 0 and all(part in said for part in parts), (words, said)


with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    _, t5, said = trained(folder, "t5", "encoder_layers = 2, encoder_length = 64", 'use = "t5"')
    shown = said[said.index("what the model fills in"):]
    assert "{+" in shown and "<extra_id_0>" not in shown.split("goodput")[0] and "[PAD]" not in shown.split("goodput")[0], shown
    _, bert, _ = trained(folder, "bert", 'positions = "rope"', 'use = "bert"')
    recipe, retriever, _ = trained(folder, "retriever", "query_length = 16", 'use = "ict"')

    check_refused(["fill-mask", t5, "--text", "a [MASK] b"], "encoder", "megahost generate", "--sequence encoder=TEXT")
    check_refused(["fill-mask", retriever, "--text", "a [MASK] b"], "megahost embed")
    check_refused(["generate", bert, "--prompt", "the model"], "megahost fill-mask")

    # A query whose only context is its own teaches nothing.
    alone = ["--set", "batch.micro=1"]
    for words in ["recipe", "check", recipe], ["run", recipe, "--run-dir", folder / "alone"], ["plan", recipe, "--on", "h100"]:
        check_refused([*words, *alone], "batch.micro", "nothing is learned", "model.hard_negatives")
    run("recipe", "check", recipe, *alone, "--set", "model.hard_negatives=1")

    # Ranks share the blocks and give the same index.
    words = ["embed", retriever, "--set", f'data.paths=["{SOURCE}/docs/models.md"]', "--split", "train", "--samples", 20, "--json"]
    one = json.loads(run(*words, "-o", folder / "one"))
    two = json.loads(run(*words, "-o", folder / "two", "--nproc", 2))
    assert one == two and one["blocks"] > 2, (one, two)
    for file in "embeddings.npy", "blocks.jsonl":
        assert (folder / "one" / file).stat().st_size == (folder / "two" / file).stat().st_size, file

    # A folder's recipe has a corpus that its model reads, and the folder's tokenizer.
    hub = folder / "hub"
    run("checkpoint", "export", t5, "-o", hub)
    config = json.loads((hub / "config.json").read_text())
    assert config["decoder_start_token_id"] == config["pad_token_id"] == 256 and config["eos_token_id"] == 257, config
    assert json.loads((hub / "generation_config.json").read_text())["decoder_start_token_id"] == 256
    assert 'use = "null"' in run("recipe", "from-hf", hub)
    letters = {letter: i for i, letter in enumerate(["<pad>", "</s>", "a", "b"] + [f"<extra_id_{i}>" for i in range(16)])}
    special = [{"id": i, "content": token, "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
               for token, i in letters.items() if token.startswith("<")]
    (hub / "tokenizer.json").write_text(json.dumps(
        {"version": "1.0", "added_tokens": special, "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None,
         "model": {"type": "BPE", "vocab": letters, "merges": []}}))
    made = run("recipe", "from-hf", hub)
    assert 'use = "hf"' in made and "tokenizer.json" in made and 'use = "t5"' in made and "mock" not in made and "null" not in made, made

    # A BERT's older folder has its words alone.
    (hub / "tokenizer.json").unlink()
    (hub / "vocab.txt").write_text("".join(f"{word}\n" for word in ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "Text", "##s"]))
    assert "lower_case = true" in run("recipe", "from-hf", hub)
    (hub / "tokenizer_config.json").write_text(json.dumps(dict(do_lower_case=False, strip_accents=None)))
    made = run("recipe", "from-hf", hub)
    assert 'use = "wordpiece"' in made and "vocab.txt" in made and "lower_case = false" in made and '"null"' not in made, made
    (hub / "tokenizer_config.json").write_text(json.dumps(dict(do_lower_case=False, strip_accents=True)))
    assert 'use = "null"' in run("recipe", "from-hf", hub)
