"""torch_samples.py > torch_samples.hpp: small files that PyTorch 2.11 wrote, for tests that run without Python."""

import pathlib
import tempfile

import torch
import torch.distributed.checkpoint as dcp


def literal(name, data):
    lines = [data[i:i + 30] for i in range(0, len(data), 30)]
    body = "\n".join('    "' + "".join(f"\\x{byte:02x}" for byte in line) + '"' for line in lines)
    return f"// {len(data)} bytes\ninline constexpr char {name}[] =\n{body};\n"


def main():
    state = {"weight": torch.arange(6, dtype=torch.float32).reshape(2, 3), "half": torch.ones(3, dtype=torch.bfloat16),
             "turned": torch.arange(6, dtype=torch.int64).reshape(2, 3).t(), "step": 7, "name": "a", "rate": 0.5,
             "flag": True, "none": None, "list": [1, (2, 3)], "e4m3": torch.ones(2).to(torch.float8_e4m3fn)}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        torch.save(state, path / "file.pt")
        shards = {"model": {"weight": state["weight"], "half": state["half"]}, "step": 7}
        dcp.save(shards, checkpoint_id=path / "dcp", no_dist=True)
        print("#pragma once\n/// Files that PyTorch 2.11 wrote: made by torch_samples.py.\n\nnamespace mh::test {\n")
        print("// clang-format off")
        print(literal("kTorchFile", (path / "file.pt").read_bytes()))
        print(literal("kDcpMetadata", (path / "dcp/.metadata").read_bytes()))
        print("// clang-format on\n\n} // namespace mh::test")


main()
