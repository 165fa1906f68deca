"""Tokenizers hf, sentencepiece, tiktoken and wordpiece: the ids and texts of the programs that their files come from, with
small vocabularies trained here on real texts."""

import base64
import json
import pathlib
import random
import tempfile

import sentencepiece
import tiktoken
import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from texts import BY_HAND, END, PATTERNS, compare, headers, known_to_all, letter_of

ADDED = [AddedToken("<l>", lstrip=True, normalized=False), AddedToken("<r>", rstrip=True, normalized=False),
         AddedToken("word", single_word=True, normalized=True), AddedToken("<Both>", lstrip=True, rstrip=True, normalized=True),
         AddedToken("É", normalized=True), AddedToken("[S]", special=True)]
WITH_ADDED = ["a<l> b  <r>  c <Both> d", "word words word", "É é e\u0301 E\u0301", "<both> <BOTH>", "[S]x [S]", " [S] x", "x<s>y"]
NAMES = ["<pad>", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[PAD]"]
BERT_SAID = ["[CLS] a [SEP]", "do not x , y . z ? don't 's n't", "ab" * 60]


def samples():
    """Real texts, and random ones over all of Unicode."""
    draw = random.Random(1)
    characters = known_to_all()
    texts = [text for text in BY_HAND if set(text) <= {"\n", *characters}]
    texts += WITH_ADDED + BERT_SAID + headers()[:15]
    texts += draw.sample([line for header in headers()[::10] for line in header.split("\n")], 400)
    pieces = ["the ", " of", "ing ", "  ", "▁", "\n", " 12", "é", "ﬁ", "½"]
    for _ in range(100):
        texts.append("".join(draw.choice(characters) for _ in range(draw.randrange(60))))
        texts.append("".join(draw.choice("aeiou tnshr .'\n\t 019é中▁😀ﬁ½ｱ\u3000\u0301") for _ in range(draw.randrange(200))))
        texts.append("".join(draw.choice([draw.choice(characters[:3000]), *pieces]) for _ in range(draw.randrange(100))))
    return texts


def trained(folder, name, **options):
    """A model of SentencePiece's trainer."""
    sentencepiece.SentencePieceTrainer.train(input=str(folder / "corpus.txt"), model_prefix=str(folder / name), minloglevel=2,
                                             hard_vocab_limit=False, **options)
    return folder / f"{name}.model"


def proto(path):
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(path.read_bytes())
    return model


def with_ties(folder, path):
    """The model with scores that add up exactly, so that many ways are equal, and with unused pieces."""
    model = proto(path)
    for i, piece in enumerate(model.pieces):
        if piece.type == 1:
            piece.score = float(round(piece.score))
            piece.type = 5 if i % 17 == 0 and len(piece.piece) > 1 else 1
    tied = folder / f"tied_{path.name}"
    tied.write_bytes(model.SerializeToString())
    return tied


def sentencepiece_models(folder):
    unigram = trained(folder, "unigram", model_type="unigram", vocab_size=2000)
    pairs = trained(folder, "pairs", model_type="bpe", vocab_size=1500, byte_fallback=True, remove_extra_whitespaces=False,
                    user_defined_symbols=["<x>", "std::", "  "], normalization_rule_name="identity")
    return [unigram, pairs, with_ties(folder, unigram), with_ties(folder, pairs),
            trained(folder, "folded", model_type="unigram", vocab_size=1500, byte_fallback=True, user_defined_symbols=["▁the"],
                    normalization_rule_name="nfkc_cf"),
            trained(folder, "across", model_type="bpe", vocab_size=1500, split_by_whitespace=False, add_dummy_prefix=False,
                    normalization_rule_name="nmt_nfkc_cf", treat_whitespace_as_suffix=True)]


def hugging_face_tokenizers(corpus, unigram, pairs):
    """(name, tokenizer) of each family."""
    quiet = {"show_progress": False}
    letters = pre_tokenizers.ByteLevel.alphabet()

    def make(model, trainer, normalizer=None, pre=None, decoder=None, post=None, added=ADDED):
        made = tokenizers.Tokenizer(model)
        parts = {"normalizer": normalizer, "pre_tokenizer": pre, "decoder": decoder, "post_processor": post}
        for key, part in parts.items():
            if part is not None:
                setattr(made, key, part)
        made.train_from_iterator(corpus, trainer)
        made.add_tokens(added)
        return made

    def bytes_(**parts):
        trainer = trainers.BpeTrainer(vocab_size=2000, initial_alphabet=letters, special_tokens=["<s>", "</s>"], **quiet)
        return make(models.BPE(), trainer, decoder=decoders.ByteLevel(), **parts)

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    sequence = pre_tokenizers.Sequence
    yield "GPT-2", bytes_(pre=byte_level)
    yield "RoBERTa", bytes_(pre=pre_tokenizers.ByteLevel(), post=processors.RobertaProcessing(("</s>", 1), ("<s>", 0)))
    yield "StarCoder", bytes_(normalizer=normalizers.NFC(), pre=sequence([pre_tokenizers.Digits(True), byte_level]))
    yield "Falcon", bytes_(pre=sequence([pre_tokenizers.Punctuation("contiguous"), byte_level, pre_tokenizers.Digits(),
                                         pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")]))
    yield "thousands, by empty matches", bytes_(pre=sequence([pre_tokenizers.Split(Regex(r"(?=(\d{3})+(?!\d))"), "isolated"),
                                                              pre_tokenizers.ByteLevel(False, use_regex=False)]))
    yield "scripts and ends of words", bytes_(
        normalizer=normalizers.Replace(Regex(r"\b(?=\p{Greek})|\p{Inherited}|\B\p{Hiragana}"), "-"),
        pre=sequence([pre_tokenizers.Split(Regex(r"\p{Han}+|\p{Old_Italic}|\p{Cyrillic}+\b|x*"), "merged_with_next"),
                      pre_tokenizers.ByteLevel(False, use_regex=False)]))
    for cased in (False, True):
        trainer = trainers.WordPieceTrainer(vocab_size=1500, special_tokens=NAMES, **quiet)
        yield f"BERT, cased={cased}", make(
            models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20 if cased else 100), trainer,
            normalizers.BertNormalizer(lowercase=not cased, clean_text=not cased), pre_tokenizers.BertPreTokenizer(),
            decoders.WordPiece(cleanup=not cased), processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2)))
    charsmap = proto(unigram).normalizer_spec.precompiled_charsmap
    change = normalizers.Sequence([normalizers.Precompiled(charsmap), normalizers.Replace(Regex(" {2,}"), " ")])
    metaspace = pre_tokenizers.Metaspace
    for name, pre, scheme in [("T5", sequence([pre_tokenizers.WhitespaceSplit(), metaspace()]), "always"),
                              ("XLM-R", metaspace(prepend_scheme="first"), "first"),
                              ("stripped", metaspace(prepend_scheme="first"), "first"),
                              ("whole texts", metaspace(prepend_scheme="never", split=False), "never")]:
        trainer = trainers.UnigramTrainer(vocab_size=1500, unk_token="<unk>", special_tokens=["<unk>", "<s>", "</s>"], **quiet)
        post = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
        strip = normalizers.Sequence([change, normalizers.Strip(), normalizers.Replace(Regex("^a?b"), "")])
        yield f"Unigram, {name}", make(models.Unigram(), trainer, strip if name == "stripped" else change, pre,
                                       decoders.Metaspace(prepend_scheme=scheme), post)
    to_space = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    llama = converted(pairs)
    llama.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    llama.decoder = decoders.Sequence([*to_space, decoders.Strip(" ", 1, 0)])
    yield "Llama 2", llama
    gemma = converted(pairs)
    gemma.normalizer = normalizers.Replace(" ", "▁")
    gemma.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    gemma.decoder = decoders.Sequence(to_space)
    yield "Gemma", gemma
    suffix = {"end_of_word_suffix": "</w>"}
    yield "CLIP", make(models.BPE(unk_token="<unk>", **suffix),
                       trainers.BpeTrainer(vocab_size=1500, special_tokens=["<unk>"], **suffix, **quiet),
                       normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex("\\s+"), " "), normalizers.Lowercase()]),
                       pre_tokenizers.Whitespace(), decoders.BPEDecoder(suffix="</w>"))
    prefix = {"continuing_subword_prefix": "@@"}
    yield "pieces with @@", make(models.BPE(unk_token="<unk>", fuse_unk=True, **prefix),
                                 trainers.BpeTrainer(vocab_size=1500, special_tokens=["<unk>"], **prefix, **quiet),
                                 normalizers.Sequence([normalizers.Nmt(), normalizers.NFKD(), normalizers.StripAccents(),
                                                       normalizers.Strip()]),
                                 sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation("merged_with_next")]))
    for behavior in ("removed", "merged_with_previous", "merged_with_next", "contiguous"):
        trainer = trainers.WordLevelTrainer(vocab_size=1500, special_tokens=["<unk>"], **quiet)
        yield f"Split, {behavior}", make(models.WordLevel(unk_token="<unk>"), trainer, pre=sequence([
            pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation(behavior), pre_tokenizers.Split(Regex("[aeiou]+"), behavior),
            pre_tokenizers.Split("t", behavior, invert=True), pre_tokenizers.CharDelimiterSplit("q"), pre_tokenizers.FixedLength(4)]))


def converted(path):
    """A model of pairs by score as Hugging Face writes it: merges in order of their scores."""
    model = proto(path)
    ids = {piece.piece: i for i, piece in enumerate(model.pieces)}
    merges = []
    for piece in model.pieces:
        for cut in range(1, len(piece.piece) if piece.type == 1 else 0):
            left, right = piece.piece[:cut], piece.piece[cut:]
            if left in ids and right in ids:
                merges.append((-piece.score, ids[left], ids[right], (left, right)))
    made = tokenizers.Tokenizer(models.BPE(ids, [merge[3] for merge in sorted(merges)], unk_token="<unk>", fuse_unk=True,
                                           byte_fallback=True))
    made.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])
    return made


# Kimi K2's pattern, by no name here: as tokenization_kimi.py says it.
KIMI = "|".join([
    r"""[\p{Han}]+""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""\p{N}{1,3}""", r""" ?[^\s\p{L}\p{N}]+[\r\n]*""", r"""\s*[\r\n]+""", r"""\s+(?!\S)""", r"""\s+"""])


def compare_by_rank(folder, corpus):
    """Tokenizer tiktoken with ranks out of trained merges."""
    trained = tokenizers.Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=2000, show_progress=False))
    byte_of = {letter_of(byte): byte for byte in range(256)}
    merged = [bytes(byte_of[c] for c in "".join(pair)) for pair in json.loads(trained.to_str())["model"]["merges"]]
    ranks = {token: rank for rank, token in enumerate(dict.fromkeys([*(bytes([byte]) for byte in range(256)), *merged]))}
    (folder / "ranks").write_text("".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()))
    for name, pattern in {**PATTERNS, "Kimi K2": KIMI}.items():
        reference = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={END: len(ranks)})
        compare(folder, f"tiktoken, {name}", ["tiktoken", f"path={folder / 'ranks'}", f"pattern={json.dumps(KIMI) if pattern is KIMI else name}", f'special_tokens=["{END}"]'],
                lambda text, reference=reference: reference.encode(text, allowed_special="all"), reference.decode)


def main(folder):
    corpus = [line for header in headers()[::4] for line in header.split("\n")] + 3 * BY_HAND
    (folder / "corpus.txt").write_text("\n".join(line for line in corpus if line.strip() and "\0" not in line))
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in samples()))
    spm = sentencepiece_models(folder)
    for path in spm:
        reference = sentencepiece.SentencePieceProcessor(model_file=str(path))
        compare(folder, f"sentencepiece, {path.stem}", ["sentencepiece", f"path={path}"], reference.encode, reference.decode)
    for name, reference in hugging_face_tokenizers(corpus, spm[0], spm[1]):
        (folder / "hf").mkdir(exist_ok=True)
        reference.save(str(folder / "hf/tokenizer.json"))
        reference = tokenizers.Tokenizer.from_file(str(folder / "hf/tokenizer.json"))  # its scores are others than those trained
        compare(folder, f"hf, {name}", ["hf", f"path={folder / 'hf'}", "add_special_tokens=true"],
                lambda text, reference=reference: reference.encode(text).ids,
                lambda ids, reference=reference: reference.decode(ids, skip_special_tokens=False))
        if name == "BERT, cased=False":
            compare_words(folder, reference)
    compare_by_rank(folder, corpus)


def compare_words(folder, trained):
    """Tokenizer wordpiece with the vocabulary of a trained one."""
    ids = trained.get_vocab(with_added_tokens=False)
    (folder / "vocab.txt").write_text("".join(token + "\n" for token in sorted(ids, key=ids.get)))
    reference = tokenizers.BertWordPieceTokenizer(str(folder / "vocab.txt"))
    compare(folder, "wordpiece", ["wordpiece", f"path={folder / 'vocab.txt'}", "add_special_tokens=true"],
            lambda text: reference.encode(text).ids, lambda ids: reference.decode(ids, skip_special_tokens=False))


with tempfile.TemporaryDirectory() as temporary:
    main(pathlib.Path(temporary))
