"""A corpus and a model with arrays of their own: `plugins check` judges them by what they declare, `check`, `plan`, `run` and
`eval` work, and what needs tokens says so."""

import json
import os
import pathlib

from trial import Trial

fixture = str(pathlib.Path(os.environ["MEGAHOST_FIXTURES"]) / "own_arrays.so")
trial = Trial("arrays", f"""
plugins = ["{fixture}"]
model = {{ use = "classifier", seq_length = 16 }}
data = {{ use = "glyphs", split = [90, 10, 0] }}
optimizer = {{ lr = 0.01 }}
batch = {{ global = 8, micro = 4 }}
train = {{ iters = 60, eval_interval = 30, eval_iters = 2 }}
precision = "fp32"
""")

tests = json.loads(trial.run("plugins", "check", fixture, "--json"))["tests"]
left_out = {test["name"] for test in tests if test["result"] == "left out"}
assert {"cached-generation", "documents-apart"} <= left_out, left_out
assert not {"forward-shape-and-dtype", "grad-check", "layouts-match", "arrays-as-declared", "ids-in-vocabulary"} & left_out, left_out
print(f"{len(tests) - len(left_out)} tests pass, left out are {sorted(left_out)}")

trial.same("tensor=2,sequence=true; context=2; data=2,zero=3")
trial.run("plan", trial.recipe, "--on", "h100")
said = trial.run("run", trial.recipe, "--run-dir", "run")
assert "warning" not in said and "class loss" in said and "what the model writes" not in said, said
first, *_, last = trial.losses("run")
assert last["class loss"] < 0.5 * first["class loss"], (first, last)
assert "class loss" in trial.run("eval", trial.recipe, "--weights", "run")
assert "--plugin" in trial.run("generate", "run", "--prompt", "a", code=2)
said = trial.run("generate", "run", "--prompt", "a", "--plugin", fixture, code=5)
assert "this model cannot continue a text: it does not give `logits` of `tokens`" in said, said
