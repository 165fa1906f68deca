#!/usr/bin/env python3
"""The Containerfile of the guides, without a container engine: its instructions, arguments and stages belong together, its
commands are a shell's, and those that set LibTorch aside do so with a wheel's folders. containerfile.py FILE"""

import pathlib
import re
import subprocess
import sys
import tempfile

INSTRUCTIONS = {"ARG", "FROM", "RUN", "COPY", "ADD", "ENV", "ENTRYPOINT"}
LEFT_BEHIND = {"gcc", "g++", "clang", "build-essential", "python3", "python3-pip", "python3-minimal", "perl"}
text = pathlib.Path(sys.argv[1]).read_text()
lines = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
steps = [line.split(None, 1) for line in lines if line.strip()]
assert {word for word, _ in steps} == INSTRUCTIONS, {word for word, _ in steps} ^ INSTRUCTIONS

stages = [[]]
for word, rest in steps:
    if word == "FROM":
        stages.append([])
    stages[-1].append((word, rest))
first, torch, image = stages
names = {re.search(r" AS (\w+)$", stage[0][1])[1] for stage in (torch,)}
for word, rest in image:
    if word in ("COPY", "ADD") and "--from=" in rest:
        assert re.search(r"--from=(\w+)", rest)[1] in names, rest
for stage in (torch, image):  # an argument is known to the stage that names it, or where a stage begins
    for word, rest in stage:
        if word == "ARG":
            name, default = rest.split("=")
            assert any(f"${name}" in other or f"${{{name}}}" in other for _, other in stage), name
            assert re.search(rf"\b{name}={re.escape(default)}\b|\b{name}=https?://", text[:text.index("ARG ")]), f"{name} is not explained"
for word, rest in steps:
    if word == "RUN":
        subprocess.run(["sh", "-n", "-c", rest], check=True)
installed = " ".join(rest for word, rest in image if word == "RUN")
packages = set(re.search(r"--no-install-recommends ([\w +.-]+?) &&", installed)[1].split())
assert packages >= {"openssh-server", "ca-certificates"} and not packages & LEFT_BEHIND, packages
# sshd does not start without its folder, and takes no key whose permissions are the operator's.
assert "mkdir -p /run/sshd" in installed and "StrictModes no" in installed and "StrictHostKeyChecking no" in installed, installed

# The folders of a wheel, as stage "torch" finds them.
with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)
    for file in ("torch/lib/libtorch_cpu.so", "torch/lib/libtorch_python.so", "torch/version.py", "torch/_C.so", "nvidia/nccl/lib/libnccl.so.2",
                 "nvidia/nccl/include/nccl.h", "nvidia/cu13/lib/libx.a", "torch/include/torch/headeronly/version.h"):
        (root / "wheels" / file).parent.mkdir(parents=True, exist_ok=True)
        (root / "wheels" / file).write_text("")
    (root / "opt").mkdir()
    command = [rest for word, rest in torch if word == "RUN"][1]
    script = re.sub(r"(?<![\w.])/(opt|wheels)", rf"{folder}/\1", command)
    subprocess.run(["sh", "-euc", script], check=True)
    kept = {str(one.relative_to(root / "opt")) for one in (root / "opt").rglob("*") if one.is_file()}
assert kept == {"torch/lib/libtorch_cpu.so", "torch/version.py", "torch/include/torch/headeronly/version.h",
                "nvidia/nccl/lib/libnccl.so.2"}, kept
print(f"{len(steps)} instructions, {len(kept)} files of a wheel's kept")
