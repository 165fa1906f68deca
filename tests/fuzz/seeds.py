"""seeds.py FOLDER: small files of each form that tests/fuzz/parsers.cpp reads, a folder for each parser, to begin from."""

import base64
import json
import pathlib
import pickle
import re
import struct
import sys
import zlib

# Tables of pyarrow 26: texts; texts with a null, words of a dictionary and lists of structs.
PARQUET = [
    "c-ke8v1$V`5Jbm{EUs{24pvy8LXAZNcP0+lRhqQsiX(q;F@mIsb&-|W+-KyAy~4$?3vXtJ?cd(FB*~NSc%TO60CIF6LGcokJH<?(n(BrPOH!mP1HqEB"
    "*@GZynjKc^eEbaG0}0S#EmkszYhI%(RxOP+*2B`m?4XwBPKkk@^yCk|dMdY3!r%&lSFMdQ9<szIEq$dYJi2j6KffWj$8l_jl;Xwxg>?RkC-<`7Ja4wf"
    "mcD;h&u`rTG`%A=",
    "c-oDUzfQw25XLV~>XxcPq2jDq>JTAnfdq&mm8k=43>hj0_E0QZ(Iz2Dp#vi$BQwvzqwox{@&KIEKcWIerQ{ra&hPWxCwEWJTj-#V+W{?52XH$j0LWwi"
    "Qrq+qr&R>3qu4`^F1@@#>YC4}+9k_ogl(cXr>ol*ZG@&={>gD`%2jbaKvr-i*C1m;wool08z%(<jybRfU@`a&ovez=r#5&z>-F_0L=ISMGSA8NByU1"
    "sps8>(h^}Trn|YOy&a&`YXLKYFI!1InXE?}mWM;pthkB%=9Gw}S#zXzxuiT5HoPL;Tg3E>s6g03V+rV8p?EsnJA{P(pOjUOGOrm5@#igYqT*;+kW|k$"
    ";bXtIYk*HToJz76eZcqwh2|Zg(RZKFUq3FFZjKrOKVe0c2LnajmdBG@Owvy{SfQ9k1t=`$c#^Ti$Tvf!I4Lg1krnh6A@Ar~qKTOm3-oMjnHi#qt==k99"
    "pe0SViw8dFT6F1pe*t9iX;="]
ARROW = [
    "c-nnZu};H44D~e$jjDh$L?{D8K7fIdu_FUR$Bwjcq7}4}+8}l0Gx!8PrJusc2Oy5;JGV`(21}05_VcrS7w4RNH$*wH3@D>BN+`t%Vq%Kf0>d_fUIV*@"
    "W&iuvIe@YP=SpHoQwdF>3%g!Vp6!|`zJRTq$Dfxid=EN=7UItvyI_0?>?q)qTsZwKkUsRWUN&~w&=8nS2afHkezkm_0h1$}V!uAN%+WFIY?4A|s8sFC"
    "eECFvm()l2n|VKj_Px&pT(|Z7#h#yUbjQ#3N^v)K(}Z)lW0bp3xd-xn3VDglvr#Yhxl;1sg~Cj`w=02+C37$F9vvj2Zpp;vV%v2_`KRKOX|TM<hiUI|d"
    "Avsy`yFO`mgBj9WQO*v7pf=8|J9ziRPjp9TB$v66yL4lyHoXD{;uCh@r@OJtnd#C&vMq<+jP8{&YKf&@}Hlmb0RY}bv3p1YM^T(#bs3QH<jPe;Xh#e2V"
    "@&jj{",
    "c-pm5u?oU45Ph|2Ej2@iA`T82`~krq=q?Cd+=Z@IN(V<j!_hz0m-B)_aP&d$<<iT$muuT~hvOD_5*Gjt0W~a26sWi(GQ%9qDn_G`$6SrvX?Rv*E>%u7"
    "vLf(WYoR>#*Xg}Cl83%`)d{dzYG*5I$PHE`kBFMN6&JzVUOmt7L5|<B%1(Kae9OLcB8sGL8vLmrMt>gU8R9?cS-zqa=T7?=>=-x6yl$%VQ1(fmf6O<`"
    "wv~VU0%VvTO#"]
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789 .,'<>/"


def varint(number):
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def field(number, value):
    """A member of a protocol buffer."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def sentencepiece(model_type, byte_fallback):
    """A model of pieces with scores; 1 is Unigram, 2 merges."""
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    pieces += [(f"<0x{i:02X}>", 0.0, 6) for i in range(256)] if byte_fallback else []
    pieces += [(text, -float(i), 1) for i, text in enumerate(["\u2581", "a", "b", "aa", "\u2581a", "bb", "aab"])]
    out = b"".join(field(1, field(1, text) + field(2, score) + field(3, kind)) for text, score, kind in pieces)
    out += field(2, field(3, model_type) + field(35, int(byte_fallback)) + field(40, 0) + field(41, 1) + field(42, 2))
    return out + field(3, field(1, "identity") + field(3, 1) + field(4, 1) + field(5, 1))


def tokenizer(model, **parts):
    added = [{"id": 0, "content": "<s>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}]
    return json.dumps({"version": "1.0", "added_tokens": added, "normalizer": None, "pre_tokenizer": None, "post_processor": None,
                       "decoder": None, "model": model, **parts}, ensure_ascii=False).encode()


def tokenizers():
    vocab = {"<s>": 0, **{letter: i + 1 for i, letter in enumerate(LETTERS + "Ġ▁")}, "aa": 50, "ab": 51, "##b": 52, "[UNK]": 53}
    pairs = {"type": "BPE", "dropout": None, "unk_token": "<s>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": True, "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": [["a", "a"], ["a", "b"]]}
    yield tokenizer(pairs, pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
                    decoder={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True})
    yield tokenizer(pairs, normalizer={"type": "Sequence", "normalizers": [
        {"type": "NFKC"}, {"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "StripAccents"}, {"type": "Lowercase"}]},
        pre_tokenizer={"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "\\p{L}+|\\s+(?!\\S)"}, "behavior": "Isolated", "invert": False},
            {"type": "Digits", "individual_digits": True}, {"type": "Punctuation", "behavior": "Contiguous"}]},
        decoder={"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                                                  {"type": "ByteFallback"}, {"type": "Fuse"},
                                                  {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        post_processor={"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                                                                 {"Sequence": {"id": "A", "type_id": 0}}],
                        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                        "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}})
    yield tokenizer({"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
                     "vocab": vocab}, normalizer={"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                                                  "strip_accents": None, "lowercase": True},
                    pre_tokenizer={"type": "BertPreTokenizer"}, decoder={"type": "WordPiece", "prefix": "##", "cleanup": True})
    yield tokenizer({"type": "Unigram", "unk_id": 0, "byte_fallback": False,
                     "vocab": [["<s>", 0.0]] + [[letter, -2.5] for letter in LETTERS + "▁"] + [["aa", -1.0], ["▁a", -1.5]]},
                    pre_tokenizer={"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
                    decoder={"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True})


def tekken():
    vocab = [{"rank": i, "token_bytes": base64.b64encode(bytes([i])).decode(), "token_str": chr(i)} for i in range(256)]
    vocab.append({"rank": 256, "token_bytes": base64.b64encode(b"aa").decode(), "token_str": "aa"})
    config = {"pattern": "\\p{L}+|\\s+|.", "num_vocab_tokens": 257, "default_vocab_size": 260, "default_num_special_tokens": 3,
              "version": "v3"}
    special = [{"rank": i, "token_str": text, "is_control": True} for i, text in enumerate(["<unk>", "<s>", "</s>"])]
    return json.dumps({"config": config, "vocab": vocab, "special_tokens": special}).encode()


def ranks():
    words = [bytes([i]) for i in range(256)] + [b"aa", b"ab", b"aab"]
    return b"".join(base64.b64encode(word) + b" %d\n" % i for i, word in enumerate(words))


def index(code, lengths, size):
    """A .idx file: lengths, places and documents."""
    places = [size * sum(lengths[:i]) for i in range(len(lengths))]
    documents = list(range(len(lengths) + 1))
    return (b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(lengths), len(documents)) +
            struct.pack(f"<{len(lengths)}i{len(lengths)}q{len(documents)}q", *lengths, *places, *documents))


def npy(kind, shape):
    header = str({"descr": kind, "fortran_order": False, "shape": shape}).encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(16)


def mds():
    config = json.dumps({"column_names": ["id", "text"], "column_encodings": ["int", "str"], "column_sizes": [8, None]}).encode()
    samples = [struct.pack("<Iq", len(text), 7) + text for text in (b"to be", b"", b"or not")]
    begin = 4 * 5 + len(config)
    places = [begin + sum(map(len, samples[:i])) for i in range(4)]
    return struct.pack("<5I", 3, *places) + config + b"".join(samples)


def safetensors():
    header = json.dumps({"__metadata__": {"format": "pt"}, "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
                         "b": {"dtype": "BF16", "shape": [], "data_offsets": [24, 26]}}).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + bytes(26)


def torch_samples():
    """The files that PyTorch wrote, as bytes by name: literals of tests/formats/torch_samples.hpp."""
    text = (pathlib.Path(__file__).parents[1] / "formats/torch_samples.hpp").read_text()
    return {name: bytes.fromhex(re.sub(r'[^0-9a-f]', "", body.replace("\\x", "")))
            for name, body in re.findall(r"char (\w+)\[\] =\n(.*?);", text, re.DOTALL)}


def seeds():
    """The files of each parser."""
    rope = json.dumps({"text": "one \u00e9 \ud83d\ude00", "other": [1, 2.5e3, None, True, {"x": []}]}).encode()
    chat = json.dumps({"text": [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}]}).encode()
    recipe = pathlib.Path(__file__).parents[2] / "recipes/quickstart.lua"
    torch = torch_samples()
    return {
        "dcp_metadata": [torch["kDcpMetadata"]],
        "flat_tokens": [struct.pack("<3I", 20240520, 1, 4) + bytes(1012) + struct.pack("<4H", 1, 2, 3, 4), bytes(8), npy("<u2", (8,))],
        "hf_index": [json.dumps({"metadata": {"total_size": 26}, "weight_map": {"a": "model-1.safetensors", "b": "m.safetensors"}}).encode()],
        "indexed": [index(8, [5, 6], 2), index(4, [5, 0, 6], 4)],
        "json": [rope],
        "lines": [rope + b"\n\n" + b'{"text": ["a", "b"]}\n'],
        "chats": [chat + b"\n"],
        "lua": [recipe.read_bytes(), b"return { model = { layers = 2 * 3, x = math.max(1, 2) }, list = { 1, 'two', true } }\n"],
        "manifest": [b'{"format": "megahost", "version": 1}'],
        "mds": [mds()],
        "npy": [npy("<i4", (2, 2)), npy("<u2", (8,))],
        "pickle": [torch["kDcpMetadata"], pickle.dumps({"a": [1, 2.5, None, True, (b"x", {2})], "b": 1 << 40}, 2)],
        "safetensors": [safetensors()],
        "sentencepiece": [sentencepiece(1, False), sentencepiece(2, True)],
        "tekken": [tekken()],
        "tiktoken": [ranks()],
        "parquet": [zlib.decompress(base64.b85decode(text)) for text in PARQUET],
        "arrow": [zlib.decompress(base64.b85decode(text)) for text in ARROW],
        "tokenizer": list(tokenizers()),
        "torch_file": [torch["kTorchFile"]],
        "toml": [b'name = "a"\n[model]\nuse = "gpt"\nlayers = 2\nlist = [1, 2.5, "x", true]\n[data.more]\na.b = 1979-05-27\n'],
        "wordpiece": [b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\nit\n'\ns\n"],
    }


def main():
    folder = pathlib.Path(sys.argv[1])
    for parser, files in seeds().items():
        (folder / parser).mkdir(parents=True, exist_ok=True)
        for i, content in enumerate(files):
            (folder / parser / f"seed-{i}").write_bytes(content)


main()
