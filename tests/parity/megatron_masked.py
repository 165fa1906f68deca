"""`data.order = "megatron"` of the corpora bert and t5: the samples of megatron-core's masked datasets, bit for bit."""

import json
import logging
import pathlib
import sys
import tempfile
import types
import warnings

import numpy
import torch

logging.disable(logging.WARNING)
warnings.filterwarnings("ignore")
from megatron.core.datasets.bert_dataset import BERTMaskedWordPieceDataset, BERTMaskedWordPieceDatasetConfig  # noqa: E402
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder  # noqa: E402
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder  # noqa: E402
from megatron.core.datasets.t5_dataset import T5MaskedWordPieceDataset, T5MaskedWordPieceDatasetConfig  # noqa: E402
from megatron.core.datasets.utils import Split  # noqa: E402

import program  # noqa: E402
from corpus_samples import Ours  # noqa: E402

PAD, UNK, CLS, SEP, MASK, FIRST_WORD, BOS, EOS, EXTRA = 0, 1, 2, 3, 4, 5, 140, 141, 60
FILE = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [f"##{i}" if i % 3 == 0 else f"{i}" for i in range(FIRST_WORD, BOS)]
SENTINELS = list(range(EOS + 1, EOS + 1 + EXTRA))
TOKENS = FILE + ["[BOS]", "[EOS]"] + [f"<extra_id_{i}>" for i in range(EXTRA)]
SPECIAL = dict(pad=PAD, cls=CLS, sep=SEP, mask=MASK, bos=BOS, eos=EOS)


def tokenizer(first_extra=EOS + 1, extra=EXTRA, **special):
    """Megatron's own, or with other ids that of Hugging Face, whose sentinels are not among the words."""
    ids = SPECIAL | dict(eod=EOS) | special
    words = FILE + ["[BOS]", "[EOS]"] * (ids["bos"] == BOS)
    return types.SimpleNamespace(**ids, additional_special_tokens_ids=list(range(first_extra, first_extra + extra)),
                                 inv_vocab=dict(enumerate(words)), unique_identifiers={"class": "test"})


TOKENIZER = tokenizer()


def write_corpus(draw, prefix, documents, longest):
    """Documents of no sentence to nine; some have one that is too long for Megatron, and words that begin with ##."""
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=numpy.uint16)
    for number in range(documents):
        lengths = draw.integers(1, longest, int(draw.integers(0, 10)) if number % 7 else 1).tolist()
        if number % 11 == 10:
            lengths.append(int(draw.integers(512, 515)))
        ids = draw.integers(FIRST_WORD, BOS, sum(lengths))
        ids[draw.random(len(ids)) < 0.02] = UNK
        ids[draw.random(len(ids)) < 0.01] = SEP  # is never hidden
        builder.add_document(torch.from_numpy(ids), lengths)
    builder.finalize(f"{prefix}.idx")


TOLD = dict(tokens=TOKENS, extra=SENTINELS, eod=EOS, **SPECIAL)


def ours_of(ours, folder, corpus, arrays, terms, sizes, seq, words=TOLD, **case):
    """The size of each split, and the arrays of its samples by name; or the sentence that refuses them."""
    out = folder / "samples"
    said = ours.ask(corpus=corpus, arrays=list(arrays), seq=seq, seed=terms.random_seed, micro=1, ranks=1, samples=1 << 40,
                    split=[float(x) for x in terms.split.split(",")], wanted=sizes, out=str(out), **words, **case)
    if said != "ok":
        return said
    numbers, splits = numpy.fromfile(out, numpy.int64), []
    for _ in Split:
        size, width = int(numbers[0]), sum(arrays.values())
        rows = numbers[1:1 + size * width].reshape(size, width)
        splits.append((size, dict(zip(arrays, numpy.split(rows, numpy.cumsum(list(arrays.values()))[:-1], axis=1)))))
        numbers = numbers[1 + size * width:]
    assert numbers.size == 0
    return splits


def options_of(draw, case, prefixes, folder):
    count = int(draw.integers(2, 4)) if case % 4 == 3 else 1
    chosen = [prefixes[i] for i in draw.permutation(len(prefixes))[:count]]
    weights = draw.random(count).tolist() if count > 1 or case % 8 == 0 else None
    options = dict(
        random_seed=int(draw.integers(1, 2**31 - 2)) if case % 2 else int(draw.integers(1, 5000)), blend=(chosen, weights),
        split=str(draw.choice(["90,8,2", "50,30,20", "1,0,0"])), path_to_cache=str(folder / f"cache{case}"), tokenizer=TOKENIZER,
        masking_probability=float(draw.choice([0.15, 0.15, 0.31, 0.07])), short_sequence_probability=float(draw.choice([0.1, 0.0, 0.4])),
        masking_do_full_word=bool(draw.integers(0, 3)), masking_do_permutation=False, masking_use_longer_ngrams=False)
    sizes = [int(draw.integers(1, 500)), int(draw.integers(1, 60)), int(draw.integers(1, 20))]
    data = dict(order="megatron", paths=chosen, mask_prob=options["masking_probability"], whole_words=options["masking_do_full_word"],
                short_seq_prob=options["short_sequence_probability"], **(dict(weights=weights) if weights else {}))
    return options, sizes, data


def compare_all(mine, dataset, sizes, terms, compare, what):
    for (size, rows), theirs in zip(mine, BlendedMegatronDatasetBuilder(dataset, sizes, lambda: True, terms).build()):
        assert size == (len(theirs) if theirs else 0), (what, size)
        for i in range(size):
            compare({name: row[i] for name, row in rows.items()}, theirs[i], terms, (what, i))
    return sum(size for size, _ in mine)


def check(ours, folder, corpus, cases, draw_case, compare):
    """Cases with samples, samples, and samples beyond a first epoch."""
    draw = numpy.random.default_rng(5)
    prefixes = [str(folder / f"{corpus}{i}") for i in range(6)]
    for i, prefix in enumerate(prefixes):
        write_corpus(draw, prefix, int(draw.integers(40, 90)), (12, 30, 60)[i % 3])
    splits, samples, refused = 0, 0, 0
    for case in range(cases):
        options, sizes, data = options_of(draw, case, prefixes, folder)
        dataset, terms, arrays, seq, further = draw_case(draw, options, data)
        mine = ours_of(ours, folder, corpus, arrays, terms, sizes, seq, data=data, **further)
        if isinstance(mine, str) or any(share and not size for (size, _), share in zip(mine, terms.split_matrix)):
            assert isinstance(mine, list) or "none that Megatron takes a sample of" in mine, mine
            refused += 1  # there Megatron looks for samples without end
            continue
        splits += sum(size > 0 for size, _ in mine)
        samples += compare_all(mine, dataset, sizes, terms, compare, (corpus, case))
    assert splits > cases and refused < cases // 4, (splits, refused)
    return f"{corpus}: {cases} cases, {splits} splits, {samples} samples"


BERT_ARRAYS = ("tokens", "labels", "loss_mask", "token_types", "segments", "order_labels", "order_loss_mask")


def t5_arrays(encoder, decoder):
    return dict(encoder_tokens=encoder, encoder_segments=encoder, tokens=decoder, labels=decoder, loss_mask=decoder)


def bert_case(draw, options, data):
    seq, pairs, most = int(draw.integers(5, 70)), bool(draw.integers(0, 2)), int(draw.choice([1, 3, 3, 10]))
    data.update(pair="order" if pairs else "none", max_ngram=most)
    terms = BERTMaskedWordPieceDatasetConfig(sequence_length=seq, masking_max_ngram=most, masking_use_geometric_distribution=False,
                                             classification_head=pairs, **options)
    return BERTMaskedWordPieceDataset, terms, {name: seq for name in BERT_ARRAYS}, seq, {}


def compare_bert(mine, theirs, terms, what):
    first = numpy.zeros(terms.sequence_length, int)
    first[0] = 1
    hidden = theirs["loss_mask"] == 1
    same = {"tokens": theirs["text"], "loss_mask": theirs["loss_mask"], "token_types": theirs["types"],
            "segments": 1 - theirs["padding_mask"], "order_labels": first * theirs["is_random"],
            "order_loss_mask": first * terms.classification_head,
            "labels": numpy.where(hidden, theirs["labels"], mine["labels"])}  # what is not hidden has -1 there
    for name, expected in same.items():
        assert (mine[name] == expected).all(), (what, name, mine[name], expected)
    assert (theirs["labels"][~hidden] == -1).all()


def t5_case(draw, options, data):
    seq, most = int(draw.integers(4, 90)), int(draw.choice([1, 3, 10, 10]))
    decoder = 2 * seq
    data.update(max_ngram=most)
    terms = T5MaskedWordPieceDatasetConfig(sequence_length=seq, sequence_length_decoder=decoder, masking_max_ngram=most,
                                           masking_use_geometric_distribution=True, **options)
    return T5MaskedWordPieceDataset, terms, t5_arrays(seq, decoder), decoder, dict(encoder=seq)


def compare_t5(mine, theirs, terms, what):
    counts = theirs["loss_mask"] == 1
    same = {"encoder_tokens": theirs["text_enc"], "encoder_segments": 1 - theirs["enc_mask"], "tokens": theirs["text_dec"],
            "loss_mask": theirs["loss_mask"], "labels": numpy.where(counts, theirs["labels"], mine["labels"])}
    for name, expected in same.items():
        assert (mine[name] == expected).all(), (what, name, mine[name], expected)
    assert (theirs["dec_mask"] == theirs["loss_mask"]).all() and (theirs["labels"][~counts] == -1).all()


def check_short_decoder(ours, folder):
    """Where Megatron ends at an assertion, or at a sentinel that is missing, we do in a sentence."""
    prefix = str(folder / "short")
    write_corpus(numpy.random.default_rng(6), prefix, 40, 30)
    options, sizes, data = options_of(numpy.random.default_rng(7), 1, [prefix], folder)
    options.update(split="1,0,0", masking_probability=0.5)
    data.update(mask_prob=0.5, max_ngram=1)
    for decoder, sentinels, error in ((40, SENTINELS, AssertionError), (200, SENTINELS[:9], IndexError)):
        terms = T5MaskedWordPieceDatasetConfig(sequence_length=60, sequence_length_decoder=decoder, masking_max_ngram=1,
                                               masking_use_geometric_distribution=True, **(options | dict(tokenizer=tokenizer(extra=len(sentinels)))))
        theirs = BlendedMegatronDatasetBuilder(T5MaskedWordPieceDataset, [50, 1, 1], lambda: True, terms).build()[0]
        try:
            [theirs[i] for i in range(50)]
            assert False, "Megatron has room"
        except error:
            pass
        said = ours.ask(corpus="t5", arrays=["tokens"], seq=decoder, encoder=60, seed=terms.random_seed, micro=1, ranks=1, samples=50,
                        split=[1, 0, 0], wanted=[50, 1, 1], out=str(folder / "samples"), data=data, **(TOLD | dict(extra=sentinels)))
        assert "Megatron would end here, too" in said, said


BERT = "pretrain_bert.py --seq-length 40 --num-layers 2 "
T5 = "pretrain_t5.py --encoder-num-layers 2 --decoder-num-layers 2 --encoder-seq-length 60 --decoder-seq-length 100 "
FACE = dict(bos=CLS, eos=SEP, eod=SEP)
SCRIPTS = [
    (BERT + "--data-path @0", {}, tokenizer(**FACE), dict(classification_head=True)),
    (BERT + "--bert-no-binary-head --legacy-tokenizer --mask-prob 0.2 --data-path 1 @0 3 @1", dict(masking_probability=0.2), TOKENIZER,
     dict(classification_head=False)),
    (T5 + "--tokenizer-type BertWordPieceCase --data-path @1", {}, tokenizer(first_extra=BOS, extra=100, **FACE), {}),
    (T5 + "--legacy-tokenizer --vocab-extra-ids 50 --short-seq-prob 0.3 --data-path 1 @0 1 @2", dict(short_sequence_probability=0.3),
     tokenizer(extra=50), {}),
]


def check_scripts(ours, folder):
    """The recipe that import-args makes of a script has the samples of the dataset that the script makes."""
    draw = numpy.random.default_rng(8)
    prefixes = [str(folder / f"script{i}") for i in range(3)]
    for prefix in prefixes:
        write_corpus(draw, prefix, 70, 30)
    (folder / "vocab.txt").write_text("\n".join(FILE) + "\n")
    shared = (f" --hidden-size 32 --num-attention-heads 4 --micro-batch-size 2 --global-batch-size 4 --train-iters 60 --eval-iters 2 "
              f"--eval-interval 20 --seed 77 --split 80,15,5 --vocab-file {folder}/vocab.txt ")
    sizes, samples = [60 * 4, (60 // 20 + 1) * 2 * 4, 2 * 4], 0
    for number, (text, options, theirs, head) in enumerate(SCRIPTS):
        for i, prefix in enumerate(prefixes):
            text = text.replace(f"@{i}", prefix)
        program.run("recipe", "import-args", shared.join(text.split(" ", 1)), "-o", folder / f"{number}.json")
        recipe = json.loads((folder / f"{number}.json").read_text())
        data, words = recipe["data"], recipe["tokenizer"]
        corpus, split = data.pop("use"), data.pop("split")
        weights = data.get("weights")
        common = dict(random_seed=77, blend=(data["paths"], weights), split=",".join(map(str, split)), tokenizer=theirs,
                      path_to_cache=str(folder / f"cache of {number}"), masking_probability=0.15, short_sequence_probability=0.1,
                      masking_do_full_word=True, masking_do_permutation=False, masking_use_longer_ngrams=False)
        if corpus == "bert":
            terms = BERTMaskedWordPieceDatasetConfig(sequence_length=40, masking_max_ngram=3, masking_use_geometric_distribution=False,
                                                     **(common | options | head))
            arrays, seq, compare, dataset, further = {name: 40 for name in BERT_ARRAYS}, 40, compare_bert, BERTMaskedWordPieceDataset, {}
        else:
            terms = T5MaskedWordPieceDatasetConfig(sequence_length=60, sequence_length_decoder=100, masking_max_ngram=10,
                                                   masking_use_geometric_distribution=True, **(common | options))
            arrays, seq, compare, dataset, further = t5_arrays(60, 100), 100, compare_t5, T5MaskedWordPieceDataset, dict(encoder=60)
        mine = ours_of(ours, folder, corpus, arrays, terms, sizes, seq, words=dict(tokenizer=words), data=data, **further)
        assert isinstance(mine, list), mine
        samples += compare_all(mine, dataset, sizes, terms, compare, text)
    return f"{len(SCRIPTS)} scripts, {samples} samples"


torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
ours = Ours(sys.argv[1])
with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    print(check(ours, folder, "bert", 36, bert_case, compare_bert))
    print(check(ours, folder, "t5", 36, t5_case, compare_t5))
    print(check_scripts(ours, folder))
    check_short_decoder(ours, folder)
print("samples that have no room: refused")
