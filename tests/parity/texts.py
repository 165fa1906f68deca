"""Texts that tokenizers are compared on, and the ids that the program writes."""

import pathlib
import struct

import numpy
import torch

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
