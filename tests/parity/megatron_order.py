"""`data.order = "megatron"`: the arrays and the samples of megatron-core, bit for bit."""

import logging
import pathlib
import shutil
import sys
import tempfile
import types
import warnings

import numpy
import torch

logging.disable(logging.WARNING)
warnings.filterwarnings("ignore")
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder  # noqa: E402
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig  # noqa: E402
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder  # noqa: E402
from megatron.core.datasets.utils import Split  # noqa: E402

from corpus_samples import Ours  # noqa: E402

EOD = 0


def tokenizer(pad=-1):
    return types.SimpleNamespace(vocab_size=1000, eod=EOD, eos=EOD, pad=pad, unique_identifiers={"class": "test"},
                                 special_tokens_dict={"eos": EOD})


def write_corpus(draw, prefix, documents, longest, eods=False):
    lengths = draw.integers(1, longest, documents).astype(numpy.int32)
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=numpy.uint16)
    for length in lengths:
        ids = draw.integers(0 if eods else 1, 30 if eods else 1000, int(length))
        builder.add_document(torch.from_numpy(ids), [int(length)])
    builder.finalize(f"{prefix}.idx")
    return lengths


def config(**options):
    given = dict(random_seed=1234, sequence_length=16, split="90,8,2", reset_position_ids=False, reset_attention_mask=False,
                 eod_mask_loss=False, tokenizer=tokenizer())
    given.update(options)
    return GPTDatasetConfig(**given)


def array(folder, name):
    file, = folder.glob(f"*-GPTDataset-train-{name}_index.npy")
    return numpy.load(file, mmap_mode="r")


def check_arrays(ours, folder):
    """The three arrays of single corpora; ours are read by numpy."""
    draw, cases, separate = numpy.random.default_rng(1), 0, 0
    for case in range(100):
        prefix, documents = folder / f"c{case}", int(draw.integers(3, 200))
        lengths = write_corpus(draw, prefix, documents, 300)
        seq, seed = int(draw.integers(2, 200)), int(draw.integers(0, 2**32 - 1, dtype=numpy.uint64))
        drop, extra = bool(draw.integers(0, 2)), bool(draw.integers(0, 2))
        terms = config(random_seed=seed, sequence_length=seq, blend=([str(prefix)], None), path_to_cache=str(folder / "cache"),
                       drop_last_partial_validation_sequence=drop, add_extra_token_to_sequence=extra)
        dataset = IndexedDataset(str(prefix))
        for split, (low, high) in zip(Split, terms.split_matrix):
            first, last = int(round(low * float(documents))), int(round(high * float(documents)))
            tokens = int(lengths[first:last].sum())
            if tokens < seq + 1:
                continue
            for samples in (None, int(draw.integers(1, 5 * tokens // seq + 2))):
                made = folder / f"made{cases}"
                said = ours.ask(index=str(made), prefix=str(prefix), first=first, last=last, num_samples=samples, seq=seq,
                                seed=seed, drop=split != Split.valid or drop, extra=extra)
                try:
                    theirs = GPTDataset(dataset, str(prefix), numpy.arange(first, last, dtype=numpy.int32), samples, split,
                                        terms)
                except AssertionError:
                    assert said == "none", (case, said)
                    continue
                for name in ("document", "sample", "shuffle"):
                    a, b = array(made, name), getattr(theirs, f"{name}_index")
                    assert a.dtype == b.dtype and a.shape == b.shape and (a == b).all(), (case, split, samples, name)
                cases += 1
                separate += said == "separate"
    assert cases >= 538 and separate >= 80, (cases, separate)
    return f"{cases} cases of three arrays, {separate} with a separate final epoch"


def theirs_of(terms, sizes):
    """Made anew: what Megatron keeps next to a corpus is found again for another extra token, too."""
    for blend in [terms.blend] if terms.blend else filter(None, terms.blend_per_split):
        for prefix in blend[0]:
            shutil.rmtree(f"{prefix}/cache", ignore_errors=True)
    return BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, terms).build()


def our_samples(ours, folder, positions, data, terms, sizes, pad=None, micro=1, ranks=1, samples=1 << 40):
    out = folder / "samples"
    split = [float(x) for x in terms.split.split(",")] if terms.split else [1, 0, 0]
    said = ours.ask(data={"order": "megatron", **data}, seq=terms.sequence_length, split=split,
                    wanted=[size or 0 for size in sizes], seed=terms.random_seed, eod=EOD, pad=pad, micro=micro, ranks=ranks,
                    samples=samples, out=str(out))
    assert said == "ok", said
    numbers = numpy.fromfile(out, numpy.int64)
    splits = []
    for _ in range(3):
        size, arrays = int(numbers[0]), 4 if positions else 3
        count = min(size, samples) * arrays * terms.sequence_length
        splits.append((size, numbers[1:1 + count].reshape(-1, arrays, terms.sequence_length)))
        numbers = numbers[1 + count:]
    assert numbers.size == 0
    return splits


def compare(ours, theirs, positions, what):
    size, samples = ours
    if theirs is None:
        assert size == 0, what
        return
    assert size == len(theirs), (what, size, len(theirs))
    for i in range(size):
        for dataset in getattr(theirs, "datasets", [theirs]):  # else the pads of the first sample that is read mask all others
            dataset.masks_and_position_ids_are_cached = False
        sample = theirs[i]
        expected = [sample["tokens"], sample["labels"], sample["loss_mask"].long()] + [sample["position_ids"]] * positions
        assert (samples[i] == torch.stack(expected).numpy()).all(), (what, i)


def check_samples(ours, folder):
    """Whole samples: blends, blends of one split, resets, masks, pads."""
    draw, cases = numpy.random.default_rng(2), 0
    prefixes = []
    for i in range(12):
        prefixes.append(str(folder / f"b{i}"))
        write_corpus(draw, prefixes[-1], int(draw.integers(20, 60)), 60, eods=True)
    for case in range(45):
        count = int(draw.integers(1, 11))
        chosen = [prefixes[i] for i in draw.permutation(12)[:count]]
        weights = draw.random(count).tolist() if draw.integers(0, 2) else None
        reset, mask, extra = bool(draw.integers(0, 2)), bool(draw.integers(0, 2)), bool(draw.integers(0, 4))
        pad = int(draw.integers(0, 5)) if draw.integers(0, 2) else None  # 0 is the end of document, too: no pad
        sizes = [int(draw.integers(1, 400)), int(draw.integers(1, 30)), int(draw.integers(1, 10))]
        seq = int(draw.integers(2, 24))
        options = dict(reset_position_ids=reset, reset_attention_mask=reset, eod_mask_loss=mask, sequence_length=seq,
                       tokenizer=tokenizer(-1 if pad is None else pad), add_extra_token_to_sequence=extra,
                       drop_last_partial_validation_sequence=bool(draw.integers(0, 2)))
        data = {"reset_positions": reset, "reset_attention": reset, "mask_eod_loss": mask, "extra_token": extra,
                "drop_last_partial": options["drop_last_partial_validation_sequence"]}
        if case % 3 < 2:  # one blend, cut into splits; a small split of a large blend may make no sample
            terms = config(blend=(chosen, weights), split=str(draw.choice(["80,10,10", "7,3", "1,1,1"])), **options)
            data.update(paths=chosen, weights=weights or [])
            terms_split = terms.split if terms.split.count(",") == 2 else terms.split + ",0"
        else:
            cuts = sorted(draw.integers(0, count + 1, 2).tolist())
            parts = [chosen[:cuts[0]], chosen[cuts[0]:cuts[1]], chosen[cuts[1]:]]
            if not parts[0]:
                parts[0] = [chosen[0]]
            of_part = [draw.random(len(part)).tolist() if weights else None for part in parts]
            terms = config(blend_per_split=[(p, w) if p else None for p, w in zip(parts, of_part)], split=None, **options)
            data["sources"] = [{"path": path, "split": split.name, **({"weight": of_part[split.value][i]} if weights else {})}
                               for split in Split for i, path in enumerate(parts[split.value])]
            terms_split = None
        try:
            theirs = theirs_of(terms, sizes)
        except (AssertionError, IndexError, ValueError, ZeroDivisionError):
            continue
        found = our_samples(ours, folder, reset, data, types.SimpleNamespace(
            sequence_length=seq, random_seed=1234, split=terms_split), sizes, pad)
        for split in Split:
            compare(found[split.value], theirs[split.value], reset, (case, split))
        cases += 1
    assert cases >= 30, cases

    # A whole validation split, and one set for each corpus.
    terms = config(blend=(prefixes[:3], None), split="60,40,0", full_validation=True)
    sizes = [50, None, 1]
    found = our_samples(ours, folder, False, {"paths": prefixes[:3], "full_validation": True}, terms, sizes)
    compare(found[1], theirs_of(terms, sizes)[1], False, "full validation")
    terms = config(blend_per_split=[(prefixes[:1], None), (prefixes[1:4], None), None], split=None,
                   multiple_validation_sets=True)
    sizes = [50, 20, 1]
    sources = [{"path": prefixes[0], "split": "train"}] + [{"path": path, "split": "valid"} for path in prefixes[1:4]]
    size, samples = our_samples(ours, folder, False, {"sources": sources, "validation_by_source": True}, terms, sizes)[1]
    for dataset in theirs_of(terms, sizes)[1]:
        compare((len(dataset), samples[:len(dataset)]), dataset, False, "validation sets")
        samples = samples[len(dataset):]
    assert len(samples) == 0
    return f"{cases} blends sample by sample, a whole validation split, three validation sets"


def cyclic(total, consumed, micro, ranks, rank, sharding):
    """MegatronPretrainingRandomSampler of megatron/training/datasets/data_samplers.py, which the package leaves out."""
    at_once = micro * ranks
    active = total - total % at_once
    epoch, in_epoch = consumed // active, consumed % active
    generator = torch.Generator()
    generator.manual_seed(epoch)
    if sharding:
        bucket = total // at_once * micro
        order = torch.randperm(bucket, generator=generator).tolist()
        indices = [rank * bucket + x for x in order[in_epoch // ranks:]]
    else:
        order = torch.randperm(total // micro * micro, generator=generator).tolist()
        indices = order[in_epoch:][rank::ranks]
    return indices[:micro]


def check_cyclic(ours, folder):
    draw = numpy.random.default_rng(3)
    prefix = str(folder / "cyclic")
    write_corpus(draw, prefix, 40, 60)
    terms = config(blend=([prefix], None), split="1,0,0")
    theirs = theirs_of(terms, [60, 1, 1])[0]
    for micro, ranks, sharding in ((1, 1, True), (2, 3, True), (2, 3, False), (1, 4, False)):
        active = len(theirs) - len(theirs) % (micro * ranks)
        data = {"paths": [prefix], "dataloader": "cyclic", "data_sharding": sharding}
        size, samples = our_samples(ours, folder, False, data, terms, [60, 0, 0], micro=micro, ranks=ranks)[0]
        assert size == len(theirs)
        for first in range(0, active, micro * ranks):
            for rank in range(ranks):
                for i, index in enumerate(cyclic(size, first, micro, ranks, rank, sharding)):
                    mine = samples[first + rank * micro + i]
                    assert (mine[0] == theirs[index]["tokens"].numpy()).all(), (micro, ranks, sharding, first, rank)


def check_files(ours, folder):
    """Megatron's index files are taken as they are, and it takes ours under its own names."""
    draw = numpy.random.default_rng(4)
    prefix = str(folder / "files")
    write_corpus(draw, prefix, 50, 60)
    cache = folder / "their_cache"
    sizes = [70, 10, 1]
    terms = config(blend=([prefix], None), split="70,20,10", path_to_cache=str(cache))
    theirs = theirs_of(terms, sizes)
    names = sorted(file.name for file in cache.iterdir())
    found = our_samples(ours, folder, False, {"paths": [prefix], "index_files": str(cache)}, terms, sizes)
    for split in Split:
        compare(found[split.value], theirs[split.value], False, split)
    assert sorted(file.name for file in cache.iterdir() if file.name != ".lock") == names, "no file was added"

    mine = folder / "our_cache"
    our_samples(ours, folder, False, {"paths": [prefix], "index_files": str(mine)}, terms, sizes)
    train, = mine.glob("*-train-description.txt")
    hashed = theirs[0].unique_description_hash
    for kind in ("description.txt", "document_index.npy", "sample_index.npy", "shuffle_index.npy"):
        (mine / f"{train.name.split('-')[0]}-GPTDataset-train-{kind}").rename(mine / f"{hashed}-GPTDataset-train-{kind}")
    before = (mine / f"{hashed}-GPTDataset-train-shuffle_index.npy").stat().st_mtime_ns
    terms = config(blend=([prefix], None), split="70,20,10", path_to_cache=str(mine))
    compare(found[0], theirs_of(terms, sizes)[0], False, "their samples by our files")
    assert (mine / f"{hashed}-GPTDataset-train-shuffle_index.npy").stat().st_mtime_ns == before

    write_corpus(draw, prefix, 50, 60)  # another corpus of this name
    said = ours.ask(data={"order": "megatron", "paths": [prefix], "index_files": str(cache)}, seq=16, split=[70, 20, 10],
                    wanted=sizes, seed=1234, micro=1, ranks=1, samples=1, out=str(folder / "samples"))
    assert "the corpus makes an index of" in said, said


def check_float32(ours, folder):
    """Beyond 2^24 tokens float32 counts samples wrongly, and so do we."""
    prefix = folder / "large"
    tokens = (1 << 24) + 2
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=numpy.uint16)
    builder.add_document(torch.zeros(tokens, dtype=torch.int64), [tokens])
    builder.finalize(f"{prefix}.idx")
    terms = config(blend=([str(prefix)], None), sequence_length=2, split="0,1,0", path_to_cache=str(folder / "float32"),
                   drop_last_partial_validation_sequence=False)
    theirs = GPTDataset(IndexedDataset(str(prefix)), str(prefix), numpy.arange(1, dtype=numpy.int32), None, Split.valid, terms)
    made = folder / "made_large"
    ours.ask(index=str(made), prefix=str(prefix), first=0, last=1, num_samples=None, seq=2, seed=1234, drop=False, extra=True)
    for name in ("document", "sample", "shuffle"):
        assert (array(made, name) == getattr(theirs, f"{name}_index")).all(), name
    assert len(theirs) != -(-(tokens - 1) // 2)


ours = Ours(sys.argv[1])
with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    print(check_arrays(ours, folder))
    print(check_samples(ours, folder))
    check_cyclic(ours, folder)
    check_files(ours, folder)
    check_float32(ours, folder)
print("cyclic loaders, index files there and back, float32 counts: equal")
