#!/usr/bin/env python3
"""Each test of `megahost plugins check` has a plugin that fails it; a sound plugin passes all.

usage: check.py FOLDER [--others]   with the plugins faulty.so (its fault is chosen by MH_FAULT) and those of FILES;
with --others each faulty plugin is given the other tests, too, and fails none of them
"""

import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.append(os.environ["MEGAHOST_SOURCE"] + "/tests/cli")
import hub

SMALL = """
plugins = ["{plugin}"]
precision = "fp32"
[model]
use = "model"
layers = 2
hidden = 32
heads = 4
seq_length = 32
[data]
use = "mock"
[tokenizer]
use = "bytes"
[optimizer]
use = "adamw"
lr = 0.001
[batch]
global = 4
[train]
iters = 2
eval_iters = 1
"""
# Faults of the file itself.
FILES = {
    "entry-only-export": "exports.so",
    "entry-only-export:visible": "visible.so",
    "pin-present": "unpinned.so",
    "no-static-libstdcxx": "own_library.so",
    "no-fast-math": "fast_math.so",
    "no-fast-math:linked": "linked_fast_math.so",
    "no-rpath-to-torch": "other_torch_path.so",
    "no-static-torch-ops": "fixtures/static_operator.so",
    "unoptimised": "unoptimised.so",
}
# Further faults, after the test that finds them, and what faults are told.
BLOCK = "(in the architecture of plugin org.megahost.faulty, forward of block layers.0)"
SAID = {
    "entry-only-export": "it exports helper_of_a_plugin, ",
    "entry-only-export:visible": " more, which other plugins and LibTorch may have too",
    "offers-tried": "corpus of-file: it could not be made, so most tests left it out: it needs --set data.file=VALUE: cannot read",
    "forward-shape-and-dtype:outputs": 'without labels its head returns no "absent"',
    "no-fast-math": "it was compiled with -ffast-math",
    "no-fast-math:linked": "flush denormal numbers to zero",
    "conditions-known": "its conditions ask for parallel.tensr, a key that no plugin here declares",
    "conditions-known:searched": "its searched() tries parallel.colour, a key that it does not declare",
    "conditions-known:changes": "its changes() tries parallel.colour, a key that it does not declare",
    "conditions-known:value": 'its searched() tries a value that the key does not take: parallel.mark is "yes", expected',
    "conditions-known:thrown": "it threw std::out_of_range: ",
    "values-finite:silent": "it threw sound::Silent",
    "documents-apart:later": "other tokens in the second document of a sample change the scores of its first one by ",
    "cached-generation:changing": "its scores of the same tokens change from call to call, without a cache",
    "world-consistent:port": "it says that this is one of 4 which meet at port 0",
    "layouts-match": "under tensor=2,sequence=true it differs from one rank by ",
    "layouts-match:context": "under context=2 it differs from one rank by ",
    "layouts-match:changing": "layers.0: `hidden` is not the same when the block runs again on the same input",
    "layouts-match:mixing": "layers.0: a token's row of its `hidden` depends on other tokens' rows",
    "layouts-match:host": "the step reads a tensor's value on the host",
    "meta-device": f"reads a tensor's value on the host {BLOCK}, which a plan does not have (aten::_local_scalar_dense)",
    "meta-device:update": "the host (in the optimizer of plugin org.megahost.faulty, update), which a plan does not have",
    "meta-device:operator": "the operation aten::median.dim_values " + BLOCK + " has no shape function",
    "meta-device:values": "the result of the operation aten::nonzero " + BLOCK + ", or its size, depends on values",
    "meta-device:segments": "reads a tensor's value on the host " + BLOCK,
    "objects-kept": "storage shelf: an object that was put is not listed",
    "objects-kept:refuse": "storage shelf: a second writer with Existing::refuse is not told of the first one's object",
    "recompute-bit-equal:blocks": "recompute keeps: it runs layers.1 again as a whole, and does not say so",
    "recompute-bit-equal": "with layers.0 recomputed, other bits come out: the loss (",
}


# Further tests that find such a fault, too: a block whose numbers change from call to call is the same in none.
ALSO = {
    "initial-values": {"build-twice", "recompute-bit-equal"},
    "layouts-match:changing": {"build-twice", "seed-determinism", "grad-check", "state-reproducible", "recompute-bit-equal",
                               "cached-generation", "documents-apart"},
}


def check(folder, fault, *words):
    file = folder / FILES.get(fault, "faulty.so")
    environment = os.environ | {"MH_FAULT": fault, "OMP_NUM_THREADS": "1"}
    result = subprocess.run([os.environ["MEGAHOST"], "plugins", "check", file, "--json", *words], env=environment,
                            text=True, capture_output=True)
    if result.returncode not in (0, 1):
        sys.exit(f"{fault}: status {result.returncode}\n{result.stdout}{result.stderr}")
    tests = json.loads(result.stdout)["tests"]
    failed = {test["name"]: test["why"] for test in tests if test["result"] == "failed"}
    if (result.returncode == 1) != bool(failed):
        sys.exit(f"{fault}: status {result.returncode}, but failed are {failed}")
    for test in tests:
        if test.get("why", "x").rstrip().endswith(":"):
            sys.exit(f"{fault}: an empty cause: {test}")
    return tests, failed


def left_out(folder, fault, says):
    """The tests that the plugin with this fault leaves out for that reason; none fails."""
    tests, failed = check(folder, fault)
    if failed:
        sys.exit(f"{fault}: fails {failed}")
    names = [test["name"] for test in tests if test["result"] == "left out" and says in test["why"]]
    print(f"{fault}: {names}")
    return names


def runs(folder):
    """The faults that the program itself finds: a layer that mixes tokens, and a name that the model has not."""
    wrong = []

    def expect(fault, status, said, *words):
        result = subprocess.run([os.environ["MEGAHOST"], *words], env=os.environ | {"MH_FAULT": fault, "MH_ALONE": ""}, cwd=temporary, text=True,
                                capture_output=True)
        print(f"{fault} {words[0]}: {result.stderr}")
        if result.returncode != status or said not in result.stderr or "bug in megahost" in result.stderr:
            wrong.append(f"{fault} {words}: status {result.returncode}, expected {status} and {said!r} in\n{result.stderr}")

    with tempfile.TemporaryDirectory() as temporary:
        (pathlib.Path(temporary) / "small.toml").write_text(SMALL.format(plugin=(folder / "faulty.so").resolve()))
        expect("layouts-match:mixing", 6, SAID["layouts-match:mixing"], "run", "small.toml", "--run-dir", "mixed", "--checking",
               "--nproc", "2", "--set", "parallel.context=2")
        # A search tries a strategy's key that is about no axis, and names one that it does not declare.
        search = ("plan", "small.toml", "--on", "h100", "--search", "--gpus", "2")
        expect("", 0, "", *search)
        owner = "the strategy placed of plugin org.megahost.faulty"
        expect("conditions-known:searched", 2, f"`searched` of {owner} tries parallel.colour, a key that it does not declare", *search)
        expect("conditions-known:value", 2, f'`searched` of {owner} tries a value that the key does not take: parallel.mark is "yes"',
               *search)
        expect("conditions-known:changes", 2, f"`changes` of {owner} tries parallel.colour", *search[:-3], "--gpus", "2")
        expect("conditions-known:thrown", 1, "the strategy of plugin org.megahost.faulty threw std::out_of_range in searched: ", *search)
        plugin = str((folder / "faulty.so").resolve())
        for key in "model.hiden", "hidden":
            expect("", 2, f"--set {key}: nothing in {plugin} takes it", "plugins", "check", plugin, "--set", f"{key}=16")
            expect("", 2, "did you mean model.hidden? its options are ", "plugins", "check", plugin, "--set", f"{key}=16")
        # Weights by the names of a plugin, in which one has a letter too many.
        layer = {"attention_norm": [768], "attention.q": [768, 768], "attention.k": [768, 768], "attention.v": [768, 768],
                 "attention.out": [768, 768], "mlp_norm": [768], "mlp.up": [3072, 768], "mlp.down": [768, 3072]}
        tensors = [("embedding.word.weight", [256, 768]), ("embedding.position.weight", [32, 768])]
        for name, sizes in (*((f"layers.0.{part}", sizes) for part, sizes in layer.items()), ("head.norm", [768])):
            tensors += [(f"{name}.weight", sizes), (f"{name}.bias", sizes[:1])]
        hub.write(pathlib.Path(temporary) / "weights", {"model_type": "faulty", "n_layer": 1},
                  [(f"theirs.{name}", sizes) for name, sizes in tensors], zeros=True)
        words = ("eval", "small.toml", "--weights", "weights", "--set", "model.hidden=768", "--set", "model.heads=12", "--set",
                 "model.layers=1", "--allow-change", "model.vocab")
        expect("hugging-face-names", 1, "the architecture's plugin names no tensor of Hugging Face for layers.0.mlp.up.weight", *words)
    return wrong


def main():
    folder = pathlib.Path(sys.argv[1])
    others = "--others" in sys.argv

    def faulty(fault):
        return check(folder, fault, *([] if others else ["--include", fault.split(":")[0]]))

    sound, failed = check(folder, "")
    wrong = [f"the sound plugin fails {failed}"] if failed else []
    skipped = [test["name"] for test in sound if test["result"] == "left out"]
    if skipped:
        wrong.append(f"the sound plugin, of every kind, leaves out {skipped}")
    faults = [test["name"] for test in sound]
    faults += [fault for fault in SAID if fault not in faults]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for fault, (_, failed) in zip(faults, pool.map(faulty, faults)):
            why = failed.pop(fault.split(":")[0], None)
            failed = {name: said for name, said in failed.items() if name not in ALSO.get(fault, ())}
            print(f"{fault}: {why}")
            if why is None or failed:
                wrong.append(f"the plugin with the fault {fault} " + ("passes it" if why is None else "") +
                             (f" fails {failed} too" if failed else ""))
            elif SAID.get(fault, "") not in why:
                wrong.append(f"{fault}: expected {SAID[fault]!r} in {why!r}")
    # A part that lacks an option is told how to give it, and passes with it.
    told = next(test["help"] for test in check(folder, "offers-tried", "--include", "offers-tried")[0])
    if "megahost plugins check FILE --set data.file=VALUE" not in told:
        wrong.append(f"offers-tried says {told}")
    _, failed = check(folder, "offers-tried", "--set", f"data.file={sys.argv[0]}")
    if failed:
        wrong.append(f"a corpus whose file is given fails {failed}")
    # Nothing of a plugin that was built without optimisation is its own.
    _, failed = check(folder, "unoptimised", "--include", "entry-only-export")
    if failed:
        wrong.append(f"a plugin that was built with -O0 fails {failed}")
    if left_out(folder, ":lossy", "it says that texts come back changed") != ["decode-encode"]:
        wrong.append("a lossy tokenizer")
    # A layer that shifts tokens by itself.
    shifted = ("layouts-match", "cached-generation", "documents-apart")
    _, failed = check(folder, ":shifted", *(word for test in shifted for word in ("--include", test)))
    print(f":shifted: {failed}")
    if sorted(failed) != sorted(shifted):
        wrong.append(f"a layer that shifts tokens by itself fails {failed}")
    wrong += runs(folder)
    sizes = left_out(folder, ":sizes", "it refuses the sizes of these tests (layers 2, ")
    if "grad-check" not in sizes or "cached-generation" not in sizes:
        wrong.append(f"a model that refuses small sizes: {sizes}")
    sys.exit("\n".join(wrong) or 0)


main()
