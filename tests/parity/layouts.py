"""Training under layouts: two ranks that share a model's matrices or its layers make one step of gradient descent, and the step takes its
gradient from the exported weights. `transformers` judges decoders; BERT, DPR and T5 draw their samples themselves, and are compared with one
rank, which transformers has judged (encoders.py).

usage: layouts.py [--all]   a model of every family, and not only of some
"""

import json
import pathlib
import sys
import tempfile

import torch
from safetensors.torch import load_file

import encoder_models
import models
import program

LR = 1000.0  # weights move so far that rounding them takes nothing from the gradient
STEP = ["--set", 'optimizer={ use = "sgd", momentum = 0 }', "--set", f"optimizer.lr={LR}", "--set", "optimizer.weight_decay=0",
        "--set", "optimizer.clip_grad=0", "--set", "lr_schedule.use=constant", "--set", "train.iters=1", "--set", "train.eval_interval=0"]
LAYOUTS = {"tensor 2": ["--nproc", 2, "--set", "parallel.tensor=2"], "pipeline 2": ["--nproc", 2, "--set", "parallel.pipeline=2"]}
ALL = "--all" in sys.argv
SOME = ("llama", "mixtral", "nemotron-h", "bert", "dpr", "t5")
failed = 0


def tensors(folder):
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def step(folder, name, *words):
    """Loss, and gradients by the names of files."""
    run, made = folder / name, folder / f"{name} export"
    program.run("run", folder / "recipe.toml", "--weights", folder / "model", "--run-dir", run, *STEP, *words)
    program.run("checkpoint", "export", run, "-o", made, "--dtype", "float32")
    losses = [json.loads(line)["losses"] for line in (run / "metrics.jsonl").read_text().splitlines() if '"losses"' in line]
    before, after = tensors(folder / "model"), tensors(made)
    return next(iter(losses[0].values())), {name: (before[name].float() - after[name]) / LR for name in after.keys() & before.keys()}


def compare(case, folder, theirs, words):
    """The logits are seen by their loss and by the gradients of the head alone."""
    global failed
    none = torch.zeros(1)
    least = program.FLOOR * program.norm(theirs[1].values())
    noise = {name for name, gradient in theirs[1].items() if program.norm([gradient]) <= least}  # 0 but for rounding
    for layout, set_layout in LAYOUTS.items():
        loss, gradients = step(folder, layout, *words, *set_layout)
        kept = {name: gradient for name, gradient in gradients.items() if name in theirs[1].keys() - noise}
        expected = {name: gradient for name, gradient in theirs[1].items() if name not in noise}
        problems = program.compare((none, loss, kept), (none, theirs[0], expected))
        problems += [f"{name} is no longer 0" for name in noise & gradients.keys() if program.norm([gradients[name]]) > 10 * least]
        worst = max((program.norm([kept[name] - gradient]) / program.norm([gradient]), name) for name, gradient in expected.items() if name in kept)
        print(f"{case.name}, {layout}: loss {loss} against {theirs[0]}, gradients off by at most {worst[0]:.2e} ({worst[1]})", flush=True)
        for problem in problems:
            print(f"  {problem}")
        failed += bool(problems)


def check_decoder(case, folder):
    """The samples of a text are its ids one after the other, each sample's last label the next one's first token."""
    model = models.random_model(case)
    length, samples = getattr(case.config, "n_positions", models.SEQ - 1), 2  # of learned positions, all
    ids = models.random_ids(case).flatten()[:samples * length + 1]
    rows = torch.stack([ids[i * length:(i + 1) * length + 1] for i in range(samples)])
    models.save(case, model, rows, folder)
    (folder / "ids.txt").write_text(" ".join(map(str, ids.tolist())))
    _, loss, gradients = models.judge_samples(model, rows[:, :-1], rows[:, 1:])
    compare(case, folder, (loss, gradients),
            ["--set", f'data={{ use = "text", paths = ["{folder}/ids.txt"], split = [1, 0, 0] }}'])


def check_encoder(case, folder):
    case.save(folder)
    words = case.text_data(folder)
    compare(case, folder, step(folder, "one rank", *words), words)


families = set()
for case in models.CASES + encoder_models.BERTS + encoder_models.DPRS + encoder_models.T5S:
    decoder = isinstance(case, models.Case)
    family = case.config.model_type if decoder else case.name
    new = family not in families
    families.add(family)
    if case.name in SOME or (ALL and new):
        with tempfile.TemporaryDirectory() as temporary:
            (check_decoder if decoder else check_encoder)(case, pathlib.Path(temporary))
sys.exit(failed and f"{failed} steps differ")
