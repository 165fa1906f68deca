#!/usr/bin/env python3
"""megahost checkpoint: what it says of whole and damaged checkpoints, and what it refuses."""

import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

program = os.environ["MEGAHOST"]
folder = pathlib.Path(tempfile.mkdtemp(prefix="megahost-checkpoints-"))
(folder / "tiny.toml").write_text(
    """
name = "tiny"
precision = "fp32"
[model]
use = "llama"
layers = 2
hidden = 32
heads = 4
kv_heads = 2
seq_length = 16
[tokenizer]
use = "null"
vocab = 40
[data]
use = "mock"
[optimizer]
use = "adamw"
[batch]
global = 4
micro = 1
[train]
iters = 4
[checkpoint]
interval = 2
"""
)


def megahost(*words):
    return subprocess.run([program, *map(str, words)], cwd=folder, capture_output=True, text=True)


def checkpoint(*words, status=0):
    done = megahost("checkpoint", *words)
    assert done.returncode == status, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout if status in (0, 1) else done.stdout + done.stderr


def refused(*words, says):
    said = checkpoint(*words, status=5)
    assert says in said, f"{words}: {said}"


def train(run, *words):
    done = megahost("run", "tiny.toml", "--run-dir", run, *words)
    assert done.returncode == 0, done.stdout + done.stderr


train("one", "--set", "parallel.data=1")
train("four", "--nproc", 4, "--set", "parallel.tensor=2", "--set", "parallel.data=2", "--set", "parallel.zero=1")

# ls
listed = json.loads(checkpoint("ls", "one", "--json"))
assert [one["step"] for one in listed] == [4, 2], listed
step = pathlib.Path(listed[0]["folder"])
stored = sum(path.stat().st_size for path in (folder / step).glob("*.safetensors"))
assert listed[0]["files"] == 1 and 0 < stored - listed[0]["weights_bytes"] - listed[0]["state_bytes"] < 30000, listed
assert "step-000000000004" in checkpoint("ls", "one")

# inspect: the same global tensors of any layout
one = json.loads(checkpoint("inspect", "one", "--json"))
four = json.loads(checkpoint("inspect", "four", "--json"))
shapes = [[(tensor["name"], tensor["dtype"], tensor["shape"]) for tensor in saved["tensors"]] for saved in (one, four)]
assert shapes[0] == shapes[1] and len(shapes[0]) > 30, shapes
assert four["files"] == 4 and max(len(tensor["boxes"]) for tensor in four["tensors"]) >= 2, four
for tensor in four["tensors"]:
    held = 0
    for box in tensor["boxes"]:
        size = 1
        for length in box["shape"]:
            size *= length
        held += 4 * size
    assert held == tensor["bytes"], tensor
shown = checkpoint("inspect", "four")
for words in ("llama", "tensor 2", "zero 1", "fp32", "embedding.word.weight", "tensors of state are not shown"):
    assert words in shown, shown
assert "optimizer.exp_avg.embedding" in checkpoint("inspect", "one", "--all")
part = checkpoint("inspect", step, "--tensor", "attention.q")
assert "layers.0.attention.q.weight" in part and "embedding" not in part, part
refused("inspect", "one", "--tensor", "nowhere", says='holds no tensor whose name has "nowhere"')

# verify: each flipped bit is found, with file, tensor and place
whole = checkpoint("verify", "four")
assert "every checksum matches" in whole, whole
for run in ("one", "four"):
    name = sorted((folder / run / "checkpoints/step-000000000004").glob("*.safetensors"))[-1]
    good = name.read_bytes()
    header = struct.unpack("<Q", good[:8])[0]
    tensors = json.loads(good[8:8 + header])
    tensors.pop("__metadata__")
    for tensor, info in list(tensors.items())[:: max(1, len(tensors) // 2)]:
        begin, end = info["data_offsets"]
        for place in {8 + header + begin, 8 + header + end - 1}:
            bad = bytearray(good)
            bad[place] ^= 1 << place % 8
            name.write_bytes(bad)
            said = checkpoint("verify", run, status=5)
            assert f'{name.name}: tensor "{tensor}", its block {json.dumps(info["shape"])} at ' in said, said
            assert f"bytes {8 + header + begin} to {8 + header + end} of the file" in said, said
            found = json.loads(megahost("checkpoint", "verify", run, "--json").stdout)
            assert not found["whole"] and len(found["damages"]) == 1, found
    name.write_bytes(good[:-1])
    refused("verify", run, says="it is cut short")
    name.unlink()
    refused("verify", run, says="No such file or directory")
    name.write_bytes(good)
    checkpoint("verify", run)
manifest = folder / "one/checkpoints/step-000000000004/megahost.manifest.json"
text = manifest.read_text()
manifest.write_text(text[: len(text) // 2])
refused("verify", "one", says="megahost.manifest.json")
assert "damaged: " in checkpoint("ls", "one")
manifest.write_text(text)

# diff
assert "the same bit for bit, 0 differ" in checkpoint("diff", "one", step)
told = checkpoint("diff", "one", "one/checkpoints/step-000000000002", status=1)
assert "numbers differ, by at most" in told and "0 tensors are the same" in told, told

# another step of another run
for words, says in ((["--weights", "one", "--step", "2"], "weights: one, step 2"), (["--weights", "one"], "weights: one, step 4")):
    done = megahost("run", "tiny.toml", "--run-dir", "from-" + words[-1], *words, "--set", "train.iters=1")
    assert done.returncode == 0 and says in done.stdout, done.stdout + done.stderr
done = megahost("run", "tiny.toml", "--run-dir", "none", "--weights", "one", "--step", "3")
assert done.returncode == 5 and "holds no checkpoint of step 3" in done.stderr, done
done = megahost("run", "tiny.toml", "--run-dir", "one", "--resume", "--step", "2")
assert done.returncode == 2 and "--weights is not given" in done.stderr, done

# export: the same bytes from each layout, in one file or several
for run in ("one", "four"):
    checkpoint("export", run, "-o", "hf-" + run)
    assert "every" not in checkpoint("verify", "hf-" + run)  # Hugging Face keeps no checksums
config = json.loads((folder / "hf-one/config.json").read_text())
assert config["model_type"] == "llama" and config["torch_dtype"] == "float32" and config["num_key_value_heads"] == 2, config
checkpoint("export", "one", "-o", "parts", "--file-size", 0.02, "--dtype", "bfloat16")
index = json.loads((folder / "parts/model.safetensors.index.json").read_text())
parts = sorted(path.name for path in (folder / "parts").glob("*.safetensors"))
assert len(parts) > 1 and parts == sorted(set(index["weight_map"].values())), parts
checkpoint("verify", "parts")
checkpoint("diff", "hf-one", "hf-four", status=1)  # sums over ranks have other last bits
refused("export", "one", "-o", "hf-one", says="hf-one holds a model already")
refused("export", "hf-one", "-o", "again", says="has the names of Hugging Face, and no recipe")
refused("export", "one", "-o", "new", "--model-type", "mixtral", says="has no model_type mixtral")
refused("export", "one", "-o", "new", "--model-type", "qwen2", says="a qwen2: ")
refused("export", "one", "-o", "new", "--step", "3", says="it holds those of steps 2, 4")
refused("export", "nowhere", "-o", "new", says="nowhere")
assert not (folder / "new").exists()

# export --to dcp and import: all bits, both ways, and a run goes on from what was imported
said = checkpoint("export", "four", "--to", "dcp", "-o", "dcp", "--file-size", 0.05)
assert "for torch.distributed.checkpoint" in said and len(list((folder / "dcp").glob("*.distcp"))) > 1, said
assert "every checksum matches" in checkpoint("verify", "dcp")
assert json.loads(checkpoint("inspect", "dcp", "--json"))["format"] == "dcp"
assert " 0 differ" in checkpoint("diff", "four", "dcp", "--all")
refused("export", "one", "--to", "dcp", "-o", "dcp", says="dcp holds a checkpoint already")
checkpoint("import", "dcp", "-o", "back")
assert " 0 differ" in checkpoint("diff", "four", "back", "--all")
assert json.loads(checkpoint("ls", "back", "--json"))[0]["step"] == 4
refused("import", "dcp", "-o", "back", says="back holds a checkpoint of step 4 already")
refused("import", "hf-one", "-o", "new", says="has the names of Hugging Face")
train("four", "--nproc", 4, "--set", "parallel.tensor=2", "--set", "parallel.data=2", "--set", "parallel.zero=1", "--resume",
      "--set", "train.iters=6")
train("back", "--nproc", 4, "--set", "parallel.tensor=2", "--set", "parallel.data=2", "--set", "parallel.zero=1", "--resume",
      "--set", "train.iters=6")
assert " 0 differ" in checkpoint("diff", "four", "back", "--all")

# export --to xser: ranks' files are joined to the same weights, by run --weights, too
checkpoint("export", "one", "--to", "xser", "--tensor", 2, "--pipeline", 2, "-o", "neuron")
ranks = sorted(path.name for path in (folder / "neuron/step_4/model").glob("*_0?.pt"))
assert ranks == [f"dp_rank_00_tp_rank_0{t}_pp_rank_0{p}.pt" for t in range(2) for p in range(2)], ranks
assert " 0 differ" in checkpoint("diff", "hf-one", "neuron") and "every checksum matches" in checkpoint("verify", "neuron")
done = megahost("run", "tiny.toml", "--run-dir", "from-neuron", "--weights", "neuron", "--set", "train.iters=1")
assert done.returncode == 0 and "weights: neuron, step 4" in done.stdout, done.stdout + done.stderr
refused("export", "one", "--to", "xser", "-o", "neuron", says='neuron is not empty: it holds "')
refused("export", "one", "--to", "xser", "--tensor", 4, "-o", "new", says="2 heads (num_key_value_heads) cannot be split over 4")
refused("export", "one", "--to", "xser", "--pipeline", 9, "-o", "new", says="puts a layer or more on each pipeline stage")
assert not (folder / "new").exists()

# checkpoint.auto: nothing, the run's own, other programs' weights; another format of ours is refused
def automatic(run, *words, status=0):
    done = megahost("run", "tiny.toml", "--set", f"checkpoint.dir={run}", "--set", "checkpoint.auto=true", *words)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


assert "no checkpoint in auto yet: starting at step 0" in automatic("auto", "--set", "train.iters=1")
assert "resumed at step 1 from the run folder auto (checkpoint.auto)" in automatic("auto", "--set", "train.iters=2")
said = automatic("neuron", "--set", "train.iters=1")
assert "weights: neuron, step 4 (checkpoint.auto, format xser)" in said, said
assert "resumed at step 1 from the run folder neuron (checkpoint.auto)" in automatic("neuron", "--set", "train.iters=2")
shutil.copytree(folder / "hf-one", folder / "hf-auto")
assert "weights: Hugging Face folder hf-auto (checkpoint.auto, format huggingface)" in automatic("hf-auto", "--set", "train.iters=1")
said = automatic("dcp", "--set", "train.iters=1", status=5)
assert "dcp holds a run's checkpoints as a folder of torch.distributed.checkpoint" in said and 'checkpoint.use = "dcp"' in said, said

# average: the mean in float64, rounded once
checkpoint("average", "four", "--last", 2, "-o", "mean")
checkpoint("average", "four", "--steps", "4,2,6", "-o", "mean-3")


def weights(path):
    """The weights of a run saved as one file, as lists of float32."""
    file = next((folder / path).glob("*.safetensors")).read_bytes()
    length = struct.unpack("<Q", file[:8])[0]
    header = json.loads(file[8:8 + length])
    header.pop("__metadata__")
    return {name: struct.unpack(f"<{(info['data_offsets'][1] - info['data_offsets'][0]) // 4}f",
                                file[8 + length + info["data_offsets"][0]:8 + length + info["data_offsets"][1]])
            for name, info in header.items()}


for step in (2, 4, 6):
    (folder / f"s{step}").mkdir()
    checkpoint("export", "four", "--step", step, "--to", "dcp", "-o", f"d{step}")
    checkpoint("import", f"d{step}", "-o", f"s{step}")
saved = {step: weights(f"s{step}/checkpoints/step-{step:012}") for step in (2, 4, 6)}
for run, steps in (("mean", (4, 6)), ("mean-3", (2, 4, 6))):
    mean = weights(f"{run}/checkpoints/step-000000000006")
    assert mean.keys() == {name for name in saved[6] if not name.startswith("optimizer.")}, mean.keys()
    for name, values in mean.items():
        for place in range(0, len(values), 17):
            exact = sum(saved[step][name][place] for step in reversed(steps)) / len(steps)
            assert values[place] == struct.unpack("<f", struct.pack("<f", exact))[0], (run, name, place)
done = megahost("generate", "mean", "--prompt", "1 2 3", "--tokens", 4)
assert done.returncode == 0, done.stderr
train("from-mean", "--weights", "mean", "--set", "train.iters=1")
refused("average", "four", "--last", 9, "-o", "new", says="four holds 3 checkpoints, fewer than --last 9")
refused("average", "four", "--steps", "2,3", "-o", "new", says="four holds no checkpoint of step 3")
assert "needs either --last or --steps" in checkpoint("average", "four", "-o", "new", status=2)
assert "is no step" in checkpoint("average", "four", "--steps", "2,x", "-o", "new", status=2)
refused("average", "hf-one", "--last", 1, "-o", "new", says="which has no steps")

# gc: what is left of killed processes, files that belong to nothing, old steps
steps = folder / "four/checkpoints"
shutil.copytree(steps / "step-000000000004", steps / "step-000000000008")
(steps / "step-000000000008/megahost.manifest.json").unlink()
shutil.copytree(steps / "step-000000000006", steps / "step-000000000006.2")
(steps / "step-000000000002/left.safetensors").write_bytes(bytes(5000))
before = sorted(path for path in steps.rglob("*"))
told = checkpoint("gc", "four", "--dry-run")
for words in ("would remove four/checkpoints/step-000000000008, ", "it is not complete", "step-000000000006, ",
              "its step was saved again", "left.safetensors, ", "no manifest names it", "four: 3 to remove, "):
    assert words in told, (words, told)
assert sorted(path for path in steps.rglob("*")) == before
assert "four: 3 removed" in checkpoint("gc", "four")
assert sorted(path.name for path in steps.glob("step-*")) == ["step-000000000002", "step-000000000004", "step-000000000006.2"]
assert not (steps / "step-000000000002/left.safetensors").exists()
assert "older than those that are kept" in checkpoint("gc", "four", "--keep", 1, "--keep-every", 4)
assert [one["step"] for one in json.loads(checkpoint("ls", "four", "--json"))] == [6, 4]
assert "four: 0 removed, " in checkpoint("gc", "four")
checkpoint("verify", "four")
# The newest that is whole stays, whatever the rules say.
file = next((steps / "step-000000000006.2").glob("*.safetensors"))
file.write_bytes(file.read_bytes()[:-1])
assert "0 removed" in checkpoint("gc", "four", "--keep", 1)
refused("gc", "dcp", says="dcp holds no checkpoints")
for rule in ("every", "best", "for", "per"):
    assert f"--keep-{rule} is given, and --keep is not" in checkpoint("gc", "four", f"--keep-{rule}", 2, status=2)
# By time and validation loss: the first of this hour, the best, and those of the last hour.
train("judged", "--set", "train.iters=8", "--set", "checkpoint.keep=0", "--set", "train.eval_interval=2", "--set", "train.eval_iters=1")
metrics = [json.loads(line) for line in (folder / "judged/metrics.jsonl").read_text().splitlines()]
losses = {one["step"]: one["eval"]["lm loss"] for one in metrics if "eval" in one}
best = min(losses, key=losses.get)
kept = lambda *words: {int(line.split("step-")[1][:12]) for line in checkpoint("gc", "judged", "--dry-run", "--keep", 1, *words).splitlines()
                       if "would remove" in line} ^ {2, 4, 6, 8}
assert kept() == {8} and kept("--keep-best", 1) == {8, best}, (losses, kept("--keep-best", 1))
assert kept("--keep-for", 1) == {2, 4, 6, 8} and kept("--keep-for", 1e-9) == {8}
assert len(kept("--keep-per", 1000)) <= 3 and min(kept("--keep-per", 1000)) == 2


# A run that began with a model of Hugging Face, and saves in its folder: its own checkpoints are meant.
shutil.copytree(folder / "hf-one", folder / "joined")
automatic("joined", "--set", "train.iters=2")
assert [one["step"] for one in json.loads(checkpoint("ls", "joined", "--json"))] == [2]
checkpoint("verify", "joined")
assert "model.embed_tokens.weight" in checkpoint("inspect", "joined", "--format", "huggingface")

# The files of a tokenizer, given as a folder or as its tokenizer.json, go with the model.
(folder / "words").mkdir()
vocabulary = {f"w{i}": i for i in range(39)} | {"<unk>": 39}
(folder / "words/tokenizer.json").write_text(json.dumps({"model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}}))
(folder / "words/tokenizer_config.json").write_text("{}")
for given in ("words", "words/tokenizer.json"):
    run = given.replace("/", "-") + "-run"
    tokenizer = ("--set", "tokenizer={use='hf', path='%s'}" % given)
    train(run, "--set", "train.iters=2", *tokenizer)
    assert ", with its tokenizer" in checkpoint("export", run, "-o", run + "-hf")
    assert (folder / f"{run}-hf/tokenizer.json").exists() and (folder / f"{run}-hf/tokenizer_config.json").exists()

# The files of an export that was killed are written again or removed; those of another format are not mixed with.
shutil.copytree(folder / "hf-one", folder / "killed")
(folder / "killed/config.json").unlink()
left = folder / "killed/model.safetensors.upload-0123456789ab"
left.write_text("half")
checkpoint("export", "one", "-o", "killed")
assert not left.exists() and (folder / "killed/config.json").exists()
for to, there in (((), "dcp"), (("--to", "dcp"), "hf-one"), (("--to", "dcp"), "neuron"), (("--to", "torch_dist"), "hf-one")):
    before = sorted((folder / there).rglob("*"))
    (folder / there / "config.json").rename(folder / "aside") if there == "hf-one" else None
    refused("export", "one", *to, "-o", there, says=f"{there} is not empty: it holds \"")
    (folder / "aside").rename(folder / there / "config.json") if there == "hf-one" else None
    assert sorted((folder / there).rglob("*")) == before

for to, step, last in (("torch_dist", "iter_0000004", "metadata.json"), ("xser", "step_4", "done")):
    half = folder / f"half-{to}"
    checkpoint("export", "one", "--to", to, "-o", half.name)
    (half / step / last).unlink()
    (half / "latest_checkpointed_iteration.txt").unlink(missing_ok=True)  # which comes after it
    for place in (half.name, f"{half.name}/{step}"):
        refused("verify", place, says=f"{half.name}/{step} was begun and is not whole: {last}, which is written last")
    done = megahost("run", "tiny.toml", "--run-dir", "new", "--weights", half.name)
    assert done.returncode == 5 and "is not whole" in done.stderr, done
    (half / step / "left").write_text("half")
    checkpoint("export", "one", "--to", to, "-o", half.name)
    assert not (half / step / "left").exists()
    checkpoint("verify", half.name)

# The optimizer's state of another program's checkpoint goes on as a run's own does.
checkpoint("export", "one", "--to", "torch_dist", "--step", 2, "-o", "theirs")
takes = ["--set", "load.from=theirs", *(word for key in ("optimizer", "progress", "data") for word in ("--set", f"load.{key}=true"))]
train("went-on", *takes)
assert " 0 differ" in checkpoint("diff", "one", "went-on", "--all"), checkpoint("diff", "one", "went-on", "--all", status=1)
train("went-on-4", "--nproc", 4, "--set", "parallel.tensor=2", "--set", "parallel.data=2", "--set", "parallel.zero=1", *takes)
for name, words, says in (("rng", [*takes, "--set", "load.rng=true"], "load.rng: the random numbers of theirs, step 2 are another program's"),
                          ("none", ["--set", "load.from=hf-one", "--set", "load.optimizer=true"], "load.optimizer: hf-one holds no exp_avg")):
    done = megahost("run", "tiny.toml", "--run-dir", "not-" + name, *words)
    assert done.returncode == 5 and says in done.stderr, done

# A model that is computed otherwise than transformers does is refused by the key of its config.json.
(folder / "deepseek").mkdir()
(folder / "deepseek/config.json").write_text(json.dumps(
    {"model_type": "deepseek_v3", "num_experts_per_tok": 6, "topk_group": 4, "n_group": 8, "n_routed_experts": 64}))
done = megahost("recipe", "from-hf", "deepseek")
assert done.returncode == 5 and "num_experts_per_tok is 6 and topk_group 4" in done.stderr, done

# An export that does not fit is refused before it begins; the files have holes: 8 TB in tensors of 1 GB, and one tensor of 8 TB.
for name, count, each, says in (("many", 8000, 10**9, ", and the disk of many-dcp has "),
                                ("one-large", 1, 8 * 10**12, " of memory, and this machine has ")):
    at = [i * each for i in range(count + 1)]
    header = json.dumps({f"t{i}": {"dtype": "U8", "shape": [each], "data_offsets": at[i:i + 2]} for i in range(count)}).encode()
    (folder / name).mkdir()
    with open(folder / name / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + at[-1])
    done = megahost("checkpoint", "export", name, "--to", "dcp", "-o", name + "-dcp")
    assert done.returncode in (3, 5) and "the export writes 8000.00 GB in " in done.stderr, done
    assert says in done.stderr, done
    assert not (folder / f"{name}-dcp").exists()

# A folder from others may not have other files read, open code, or write over the terminal.
outside = folder / "outside"
outside.mkdir()
for name, linked in (("one-hf", "model.safetensors"), ("one-dcp", ".metadata"), ("one-dist", "iter_0000004"), ("one", "checkpoints")):
    if not (folder / name).exists():
        to = {"one-hf": (), "one-dcp": ("--to", "dcp"), "one-dist": ("--to", "torch_dist")}[name]
        checkpoint("export", "one", *to, "-o", name)
    shutil.copytree(folder / name, folder / f"linked-{name}")
    (folder / f"linked-{name}" / linked).rename(outside / f"{name}-{linked}")
    (folder / f"linked-{name}" / linked).symlink_to(outside / f"{name}-{linked}")
    refused("verify", f"linked-{name}", says=f"link to {outside / f'{name}-{linked}'}")
refused("export", "words-run", "-o", "new", "--set", "tokenizer.path=nowhere", says="nowhere")
shutil.copytree(folder / "words-run", folder / "reads")
shutil.rmtree(folder / "reads/tokenizer")
for words in (("generate", "reads", "--prompt", "w1"), ("plan", "reads"), ("checkpoint", "export", "reads", "-o", "new")):
    said = megahost(*words)
    assert said.returncode == 5 and f"names {folder}/words as tokenizer.path, which is not in that folder" in said.stderr, said
    assert f"--set tokenizer.path={folder}/words" in said.stderr, said
    said = megahost(*words, "--set", f"tokenizer.path={folder}/words")
    assert said.returncode == 0, said
shutil.move(folder / "words", folder / "gone") # a run's own copy is enough
for words in (("generate", "words-run", "--prompt", "w1"), ("checkpoint", "export", "words-run", "-o", "of-copy")):
    said = megahost(*words)
    assert said.returncode == 0, said
assert (folder / "of-copy/tokenizer.json").exists() and (folder / "of-copy/tokenizer_config.json").exists()
recipe = (folder / "reads/recipe.toml").read_text()
(folder / "reads/recipe.toml").write_text('extends = "../tiny.toml"\n' + recipe)
said = megahost("generate", "reads", "--prompt", "w1", "--set", f"tokenizer.path={folder}/gone")
assert said.returncode and "the recipe of a run folder extends another" in said.stderr, said
evil = pathlib.Path(os.environ["MEGAHOST_FIXTURES"], "talks.so")
shutil.copytree(folder / "one", folder / "evil")
shutil.copy(evil, folder / "evil/evil.so")
recipe = (folder / "evil/recipe.toml").read_text()
(folder / "evil/recipe.toml").write_text(recipe.replace("plugins = []", f'plugins = ["{folder}/evil/evil.so"]'))
for words in (("generate", "evil", "--prompt", "1"), ("plan", "evil")):
    said = megahost(*words)
    assert said.returncode and f"names the plugin {folder}/evil/evil.so, which is code" in said.stderr, said
    assert f"--plugin {folder}/evil/evil.so" in said.stderr, said

# Memory of an export is that of some tensors, not of all: 157 MB, of which the largest has 17.
train("wide", "--set", "model.hidden=512", "--set", "model.heads=8", "--set", "model.layers=3", "--set", "tokenizer.vocab=8192",
      "--set", "train.iters=1", "--set", "batch.global=1", "--set", "checkpoint.interval=1")


alone = os.environ.get("MEGAHOST_WARM_PROGRAM", program)  # a process of its own: copies of another share its memory


def peak(*words):
    """Kilobytes."""
    child = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); " \
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    done = subprocess.run([sys.executable, "-c", child, alone, *words], cwd=folder, capture_output=True, text=True, check=True)
    return int(done.stdout)


def said_peak(*words):
    """Kilobytes, of the sentence "... takes 123.4 MB of memory"."""
    done = subprocess.run([alone, *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done
    number, unit = done.stderr.split(" takes ")[1].split(" of memory")[0].split()
    return float(number) * {"kB": 1, "MB": 1e3, "GB": 1e6}[unit] / 1.024


grown = peak("checkpoint", "export", "wide", "--to", "dcp", "-o", "wide-dcp") - peak("checkpoint", "ls", "wide")
assert grown < 70000, f"an export takes {grown} kB more than ls"
checkpoint("export", "wide", "-o", "wide-hf")
checkpoint("export", "wide", "--to", "torch_dist", "-o", "wide-dist")
for words in (("export", "wide", "--to", "dcp"), ("export", "wide"), ("export", "wide", "--to", "torch_dist"),
              ("export", "wide", "--dtype", "bfloat16"), ("import", "wide-dcp"), ("average", "wide", "--last", "1"),
              ("import", "wide-hf", "--recipe", "wide/recipe.toml"), ("import", "wide-dist", "--recipe", "wide/recipe.toml")):
    taken, said = (measure("checkpoint", *words, "-o", to) for measure, to in ((peak, "p"), (said_peak, "s")))
    assert abs(taken / said - 1) < 0.1, f"{words} says that it takes {said} kB, and takes {taken}"
    shutil.rmtree(folder / "p"), shutil.rmtree(folder / "s")

shutil.rmtree(folder)
sys.exit(0)
