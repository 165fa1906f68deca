#!/usr/bin/env python3
"""Writes a tiny GPT-2 as a Hugging Face folder.

usage: hub.py FOLDER [KEY=JSON ...]   changes of config.json; null takes a key away
"""

import json
import pathlib
import random
import struct
import sys

HIDDEN, VOCAB, LENGTH = 16, 256, 16


def shapes(layers):
    yield "wte.weight", [VOCAB, HIDDEN]
    yield "wpe.weight", [LENGTH, HIDDEN]
    for i in range(layers):
        for name, sizes in {"ln_1": [HIDDEN], "ln_2": [HIDDEN], "attn.c_attn": [HIDDEN, 3 * HIDDEN],
                            "attn.c_proj": [HIDDEN, HIDDEN], "mlp.c_fc": [HIDDEN, 4 * HIDDEN],
                            "mlp.c_proj": [4 * HIDDEN, HIDDEN]}.items():
            yield f"h.{i}.{name}.weight", sizes
            yield f"h.{i}.{name}.bias", sizes[-1:]
    yield "ln_f.weight", [HIDDEN]
    yield "ln_f.bias", [HIDDEN]


def write(folder, config, tensors, zeros=False):
    """A folder of random tensors, or of zeros, by name and shape."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    random.seed(1)
    header, data = {}, b""
    for name, sizes in tensors:
        count = sizes[0] * (sizes[1] if len(sizes) > 1 else 1)
        values = bytes(4 * count) if zeros else struct.pack(f"<{count}f", *(random.gauss(0, 0.2) for _ in range(count)))
        header[name] = {"dtype": "F32", "shape": sizes, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def main():
    config = {"model_type": "gpt2", "n_layer": 1, "n_embd": HIDDEN, "n_head": 2, "n_positions": LENGTH,
              "vocab_size": VOCAB, "use_cache": True}
    for change in sys.argv[2:]:
        key, value = change.split("=", 1)
        config[key] = json.loads(value)
    config = {key: value for key, value in config.items() if value is not None}
    write(pathlib.Path(sys.argv[1]), config, [("transformer." + name, sizes) for name, sizes in shapes(config["n_layer"])])


if __name__ == "__main__":
    main()
