"""Builds the stand-ins for NVIDIA's libraries: those that compute nothing and count what they are asked for.

build(FOLDER, TORCH_LIBS, HEADERS) makes one library for each that LibTorch's CUDA half names: from runtime/NAME.cpp where
there is one, and for every other function that LibTorch asks for one which returns 0 and is counted by its name.
"""

import collections
import fcntl
import pathlib
import re
import subprocess

SOURCES = pathlib.Path(__file__).with_name("runtime")
ROOT = SOURCES.parents[2]
ASKING = ("libtorch_cuda.so", "libtorch_cuda_linalg.so", "libtorch_nvshmem.so", "libtorch_cpu.so", "libc10_cuda.so",
          "libcaffe2_nvrtc.so")
# Functions whose symbols carry no version, by the start of their names.
PREFIXES = {"libnccl.so.2": "nccl", "libcusparseLt.so.0": "cusparseLt", "libcufile.so.0": "cuFile",
            "libcuda.so.1": "cu[A-Z]"}
VERSIONS = {"libnvshmem_host.so.3": "NVSHMEM"}  # others are called as their library
NEEDED = {"libnccl.so.2": ["-l:libcudart.so.13"]}  # stand-ins that call one another
OWN = {"libcudart.so.13": ["cudart.cpp", "memory.cpp", "streams.cpp"]}  # made of more than one source


def asked(folder):
    """Names of the libraries, and the functions that each is asked for."""
    libraries, functions = {"libcuda.so.1"}, collections.defaultdict(set)
    for name in ASKING:
        dynamic = subprocess.check_output(["readelf", "-dW", folder / name], text=True)
        libraries |= set(re.findall(r"NEEDED.*\[(lib(?:cu|nccl|nvshmem|nvrtc).*)\]", dynamic))
        undefined = subprocess.check_output(["nm", "-D", "--undefined-only", folder / name], text=True)
        for function, version in re.findall(r" U (\w+)(?:@(\S+))?", undefined):
            functions[version].add(function)
    return {library: {function for function in functions["" if library in PREFIXES else VERSIONS.get(library, library)]
                      if re.match(PREFIXES.get(library, ""), function)} for library in sorted(libraries)}


def compile_object(folder, source, headers):
    made = folder / (source.stem + ".o")
    subprocess.run(["g++", "-std=c++20", "-O1", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}",
                    *(f"-isystem{folder}" for folder in headers), "-c", source, "-o", made], check=True)
    return made


def link(folder, library, objects, missing, version):
    script, empty = folder / "exports.map", folder / "empty.c"
    script.write_text(f"{version} {{ global: *; }};")
    empty.write_text("void empty_count(const char*, const char*, double);\n" + "".join(
        f'int {name}(void) {{ empty_count("call", "{name}", 0); return 0; }}\n' for name in sorted(missing)))
    subprocess.run(["gcc", "-w", "-fno-builtin", "-O1", "-fPIC", "-c", empty, "-o", folder / "empty.o"], check=True)
    subprocess.run(["g++", "-shared", f"-Wl,-soname,{library}", f"-Wl,--version-script={script}", "-Wl,-rpath,$ORIGIN",
                    *objects, folder / "empty.o", f"-L{folder}", "-lempty_counts", *NEEDED.get(library, []), "-ldl",
                    "-o", folder / library], check=True)


def build_all(folder, torch_libs, headers):
    counts = compile_object(folder, SOURCES / "counts.cpp", headers)
    subprocess.run(["g++", "-shared", "-Wl,-soname,libempty_counts.so", counts, "-o", folder / "libempty_counts.so"],
                   check=True)
    for library, functions in asked(torch_libs).items():
        stem = library.removeprefix("lib").split(".so")[0]
        sources = [SOURCES / name for name in OWN.get(library, [stem + ".cpp"])]
        objects = [compile_object(folder, source, headers) for source in sources if source.exists()]
        defined = set()
        for one in objects:
            defined |= set(re.findall(r" T (\w+)", subprocess.check_output(["nm", one], text=True)))
        version = "" if library in PREFIXES else VERSIONS.get(library, library)
        link(folder, library, objects, functions - defined, version)
    link(folder, "libmegahost-cuda.so", [compile_object(folder, SOURCES / "kernels.cpp", headers)], set(), "")


def build(folder, torch_libs, headers):
    """Builds what is older than its sources; tests that run side by side wait for one another."""
    folder.mkdir(parents=True, exist_ok=True)
    done = folder / "done"
    newest = max(path.stat().st_mtime for path in
                 [*SOURCES.iterdir(), *(ROOT / "core/cuda").iterdir(), pathlib.Path(__file__)])
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists() or done.stat().st_mtime < newest:
            build_all(folder, torch_libs, headers)
            done.touch()
