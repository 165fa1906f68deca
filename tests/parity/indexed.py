"""Tokenised corpora: our bytes are those of Megatron's IndexedDatasetBuilder, and each reads what the other wrote."""

import json
import os
import pathlib
import random
import subprocess
import tempfile
import warnings

import numpy
import torch

import program

warnings.filterwarnings("ignore")
from megatron.core.datasets.indexed_dataset import DType, IndexedDataset, IndexedDatasetBuilder  # noqa: E402

VOCABULARIES = [300, 65499, 65500, 100000]


def random_documents(draw, vocab):
    """Lists of sequences of ids: some documents have none, some several, one is long."""
    documents = [[[draw.randrange(vocab) for _ in range(draw.randrange(1, 40))] for _ in range(draw.choice([0, 1, 1, 1, 3]))]
                 for _ in range(200)]
    return documents + [[[draw.randrange(vocab) for _ in range(50000)]], []]


def write_theirs(prefix, documents, vocab):
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=DType.optimal_dtype(vocab))
    for sequences in documents:
        ids = [id for sequence in sequences for id in sequence]
        builder.add_document(torch.tensor(ids, dtype=torch.int64), [len(sequence) for sequence in sequences])
    builder.finalize(f"{prefix}.idx")


def write_ours(folder, documents, vocab):
    lines = [json.dumps({"text": [" ".join(map(str, sequence)) for sequence in sequences]}) for sequences in documents]
    (folder / "documents.jsonl").write_text("\n".join(lines))
    program.run("data", "prepare", folder / "documents.jsonl", "--output", folder / "ours", "--tokenizer", "null",
                "--set", f"tokenizer.vocab={vocab}", "--workers", 3)
    return folder / "ours_text_document"


def inspect(prefix, *options):
    return json.loads(program.run("data", "inspect", prefix, "--json", *options))


def check(folder, vocab):
    documents = random_documents(random.Random(vocab), vocab)
    theirs, ours = folder / "theirs", write_ours(folder, documents, vocab)
    write_theirs(theirs, documents, vocab)
    for ending in (".bin", ".idx"):
        a, b = pathlib.Path(f"{theirs}{ending}").read_bytes(), pathlib.Path(f"{ours}{ending}").read_bytes()
        assert a == b, f"vocabulary {vocab}: {ending} differs, {len(a)} and {len(b)} bytes"

    dataset = IndexedDataset(str(ours))
    sequences = [sequence for document in documents for sequence in document]
    assert len(dataset) == len(sequences)
    for i in (0, 1, len(sequences) - 1):
        assert dataset[i].tolist() == sequences[i]

    told = inspect(theirs)
    assert told["documents"] == len(documents) and told["sequences"] == len(sequences), told
    assert told["tokens"] == sum(map(len, sequences)), told
    assert told["type"] == numpy.dtype(DType.optimal_dtype(vocab)).name, told
    for i in (0, 77, 200, 201):
        shown = inspect(theirs, "--document", i)
        assert shown["sequence_lengths"] == [len(sequence) for sequence in documents[i]], i
        assert shown["ids"] == [id for sequence in documents[i] for id in sequence], i


def check_other_types(folder):
    """Types that our writer never chooses."""
    for dtype in (numpy.uint8, numpy.int8, numpy.int16, numpy.int64):
        builder = IndexedDatasetBuilder(str(folder / "other.bin"), dtype=dtype)
        builder.add_document(torch.tensor([1, 2, 3, 127]), [1, 3])
        builder.finalize(str(folder / "other.idx"))
        told = inspect(folder / "other")
        assert told["type"] == numpy.dtype(dtype).name and told["first"] == [1, 2, 3, 127], told
    builder = IndexedDatasetBuilder(str(folder / "float.bin"), dtype=numpy.float32)
    builder.add_document(torch.tensor([1.0]), [1])
    builder.finalize(str(folder / "float.idx"))
    refused = subprocess.run([os.environ["MEGAHOST"], "data", "inspect", folder / "float"], capture_output=True, text=True)
    assert refused.returncode == 5 and "floating-point" in refused.stderr, refused


with tempfile.TemporaryDirectory() as temporary:
    for vocab in VOCABULARIES:
        folder = pathlib.Path(temporary, str(vocab))
        folder.mkdir()
        check(folder, vocab)
    check_other_types(pathlib.Path(temporary))
print(f"the same bytes for vocabularies of {VOCABULARIES}")
