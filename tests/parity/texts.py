"""Texts that tokenizers are compared on, and the ids that the program writes."""

import json
import os
import pathlib
import struct
import subprocess
import sys
import unicodedata

import numpy
import torch
from tokenizers import normalizers, pre_tokenizers

import program

END = "<|endoftext|>"
BY_HAND = """
The quick brown fox doesn't jump over the lazy dog; it's 1,234.56 metres, we're told, they'll say. I'D NOT!
\tfor (int i = 0; i < n; ++i) {\n\t\tsum += a[i] * b[i]; // dot product\n\t}\n
def f(x: "list[int]") -> None:\n    return {k: v for k, v in zip(x, x[1:])}   \n\n\n
Zażółć gęślą jaźń. Größe, naïve café, e\u0301te\u0301. Ελληνικά. Русский текст. עברית. العربية ٣٤٥. हिन्दी १२३. ไทย.
日本語の文章です。中文，标点！한국어 문장. ⅷ ½ ² ①
😀 👩‍🚀 👨‍👩‍👧‍👦 🇵🇱 ❤️ 🏳️‍🌈 ✨✨✨ 🤷🏽‍♀️
a\u00a0b\u2003c\u3000d\u200be\u180ef\u0085g\u2028h\u2029i\u001cj\u001fk\ufeffl\u0000m \r\n \r \n  x
""".split("\n") + ["", " ", "  ", "\n", "\n\n ", " \t", "'", "''s", "'S 's", "a" * 3000, " " * 3000, "ab" * 700, "\u0301", END,
                   f"one{END}two {END}{END} three", "<|endoftext|", "\U0010ffff", "\ue000 \ue001", "\r\n" * 50]

# How texts are cut into words, as tiktoken and the models' own code say it.
PATTERNS = {
    "gpt2": r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s""",
    "cl100k": r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s""",
    "llama3": r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
}


def headers():
    """Real C++ text, the same files each time."""
    folder = pathlib.Path(torch.__file__).parent / "include"
    files = sorted(folder.glob("c10/**/*.h")) + sorted(folder.glob("ATen/*.h"))
    return [file.read_text(errors="replace") for file in files]


def prepare(folder, name, inputs, options):
    """The ids of each document as the program writes them."""
    program.run("data", "prepare", *inputs, "--output", folder / name, "--force", *options)
    prefix = f"{folder / name}_text_document"
    index = numpy.fromfile(f"{prefix}.idx", dtype=numpy.uint8)
    kind, sequences = struct.unpack_from("<BQ", index, 17)
    lengths = index[34:34 + 4 * sequences].view(numpy.int32)
    starts = index[34 + 12 * sequences:].view(numpy.int64)
    ids = numpy.fromfile(f"{prefix}.bin", dtype={4: numpy.int32, 8: numpy.uint16}[kind])
    ends = numpy.concatenate([[0], lengths.cumsum()])
    return [ids[ends[a]:ends[b]].tolist() for a, b in zip(starts, starts[1:])]


def known_to_all():
    """Assigned characters that the tables of all references treat alike: some of these are as old as Unicode 8."""
    punctuation, accents = pre_tokenizers.Punctuation("removed"), normalizers.StripAccents()
    bert = normalizers.BertNormalizer(handle_chinese_chars=False, lowercase=False, strip_accents=True)
    forms = {form: getattr(normalizers, form)() for form in ("NFD", "NFKD")}

    def alike(c):
        kind = unicodedata.category(c)
        if kind in ("Cn", "Cs"):
            return False
        if (kind[0] == "P" or kind[0] == "S" and c < "\x80") == bool(punctuation.pre_tokenize_str(c)):
            return False
        if (kind[0] == "M") == accents.normalize_str("a" + c).endswith(c):
            return False
        if any(form.normalize_str(c) != unicodedata.normalize(name, c) for name, form in forms.items()):
            return False
        return kind not in ("Mn", "Cf") or bert.normalize_str(f"a{c}b") == "ab"

    return [c for c in map(chr, range(0x110000)) if alike(c)]


def decoded(ids, options):
    """The texts of all lists of ids."""
    lines = "".join(" ".join(map(str, one)) + "\n" for one in ids)
    command = [os.environ["MEGAHOST"], "tokenizer", "decode", "-", "--json", *options]
    result = subprocess.run(command, input=lines, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(result.stderr)
    return [json.loads(line) for line in result.stdout.split("\n")[:-1]]


def compare(folder, what, settings, encode, decode):
    """All texts of the folder's texts.jsonl, there, and where `decode` is given back."""
    use, *settings = settings
    options = ["--tokenizer", use]
    for setting in settings:
        options += ["--set", f"tokenizer.{setting}"]
    texts = [json.loads(line)["text"] for line in (folder / "texts.jsonl").open()]
    ids = prepare(folder, "ids", [folder / "texts.jsonl"], options)
    theirs = [encode(text) for text in texts]
    assert len(ids) == len(texts), (len(ids), len(texts))
    wrong = [case for case in zip(texts, ids, theirs) if case[1] != case[2]]
    if decode is not None:
        back = decoded(theirs, options)
        assert len(back) == len(texts), (len(back), len(texts))
        wrong += [case for case in zip(texts, back, map(decode, theirs)) if case[1] != case[2]]
    if wrong:
        text, a, b = min(wrong, key=lambda case: len(case[0]))
        sys.exit(f"{what}: {len(wrong)} of {len(texts)} texts differ, as {ascii(text[:200])}: {a[:60]!a}, expected {b[:60]!a}")
    print(f"{what}: {len(texts)} texts, {sum(map(len, ids))} ids, the same there{' and back' if decode else ''}")


def letter_of(byte):
    """The letter of GPT-2's alphabet that stands for a byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return chr(byte) if byte in plain else chr(256 + byte - sum(other < byte for other in plain))
