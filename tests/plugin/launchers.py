#!/usr/bin/env python3
"""Launchers of plugins: named in recipes with options, asked before the recipe is resolved, and shadowed by --plugin."""

import os
import pathlib
import shutil
import subprocess
import tempfile

program = os.environ["MEGAHOST"]
fixture = str(pathlib.Path(os.environ["MEGAHOST_FIXTURES"]) / "launches.so")
folder = pathlib.Path(tempfile.mkdtemp(prefix="megahost-launchers-"))
base = """
precision = "fp32"
model = { use = "llama", layers = 2, hidden = 32, heads = 4, seq_length = 32 }
data = { use = "mock" }
batch = { global = 8 }
train = { iters = 3 }
"""
(folder / "plain.toml").write_text(base)
(folder / "opened.toml").write_text(f'plugins = ["{fixture}"]\n' + base)
(folder / "named.toml").write_text(f'plugins = ["{fixture}"]\nlauncher = {{ use = "launches", prefix = "MINE" }}\n' + base)
(folder / "bare.toml").write_text(f'plugins = ["{fixture}"]\nlauncher = "launches"\n' + base)
(folder / "lua.lua").write_text(f"""
return {{
  extends = "plain.toml",
  plugins = {{ "{fixture}" }},
  launcher = {{ use = "launches", prefix = "MINE" }},
}}
""")


def place(prefix, ranks=8):
    return {f"{prefix}_RANK": "1", f"{prefix}_SIZE": str(ranks), f"{prefix}_PORT": "1"}


def megahost(*words, code=0, **environment):
    result = subprocess.run([program, *words], cwd=folder, capture_output=True, text=True, env=os.environ | environment)
    print(" ".join(words), environment, "\n" + result.stdout + result.stderr, flush=True)
    assert result.returncode == code, result.returncode
    return result.stdout + result.stderr


def ranks(*words, **environment):
    first = megahost("mesh", *words, **environment)
    return int(next(line for line in first.splitlines() if " rank" in line).split()[0])


# The launcher has a recipe's options for it before the number of ranks is known.
for recipe in ("named.toml", "lua.lua"):
    assert ranks(recipe, **place("MINE")) == 8
    assert ranks(recipe, **place("FIXTURE")) == 1
assert ranks("bare.toml", **place("FIXTURE")) == 8
assert ranks("opened.toml", **place("FIXTURE")) == 8
assert ranks("plain.toml", "--plugin", fixture, **place("FIXTURE")) == 8
assert ranks("plain.toml", **place("FIXTURE")) == 1
setting = 'launcher={use="launches",prefix="SET"}'
assert ranks("named.toml", "--set", setting, **place("SET")) == 8
# Options of the command line come first, and a launcher that did not start the process leaves the others.
assert ranks("named.toml", "--nproc", "2") == 2
variables = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
assert ranks("named.toml", **variables) == 2
# Two that claim a process are told to be named; one with a required option is asked where it is.
both = ["--plugin", fixture, "--set", 'launcher={use="needs-an-option",prefix="FIXTURE"}']
assert ranks("plain.toml", *both, **place("FIXTURE")) == 8
text = megahost("recipe", "check", "plain.toml", "--plugin", fixture, "--set", "launcher=needs-an-option", code=2)
assert "launcher.prefix is missing" in text, text

# The launcher's keys are like any: checked, explained, shown.
text = megahost("recipe", "check", "named.toml", "--set", "launcher.prefx=X", code=2)
assert "unknown option `prefx` in launcher" in text and "did you mean `prefix`?" in text, text
text = megahost("recipe", "check", "named.toml", "--set", "launcher=lanches", code=2)
assert "did you mean `launches`?" in text, text
text = megahost("recipe", "check", "plain.toml", "--set", "launcher=srun", code=2)
assert 'launcher is "srun", expected the name of a plugin of kind launcher' in text, text
text = megahost("recipe", "explain", "named.toml", "launcher.prefix")
assert 'launcher.prefix = "MINE"' in text and "what its variables begin with" in text, text
text = megahost("recipe", "show", "named.toml")
assert "[launcher]" in text and 'prefix = "MINE"' in text, text
for words in (["schema"], ["stubs", "-o", "stubs"]):
    megahost("recipe", *words, "--plugin", fixture)
    text = (folder / "stubs/megahost.gen.lua").read_text() if "stubs" in words else megahost("recipe", *words, "--plugin", fixture)
    assert "prefix" in text and "launches" in text, words

# An installed one is found by itself; the file of --plugin or of the recipe comes before it, and that is said.
installed = folder / "installed"
installed.mkdir()
shutil.copy(fixture, installed / "launchers-launches.so")
path = {"MEGAHOST_PLUGIN_PATH": str(installed)}
assert ranks("plain.toml", **path, **place("FIXTURE")) == 8
assert ranks("plain.toml", "--set", "launcher=launches", **path, **place("FIXTURE")) == 8
shadowed = f"which shadows org.megahost.launches/launches ({installed}/launchers-launches.so)"
for words in (["plain.toml", "--plugin", fixture], ["bare.toml"], ["opened.toml"]):
    text = megahost("mesh", *words, **path, **place("FIXTURE") | {"FIXTURE_RANK": "0"})
    assert "8 ranks" in text and text.count(shadowed) == 1, text
(installed / "launchers-launches.so").rename(installed / "launchers-elsewhere.so")
text = megahost("mesh", "plain.toml", "--plugin", fixture, **path, **place("FIXTURE") | {"FIXTURE_RANK": "0"})
assert "8 ranks" in text and "launchers-elsewhere.so" in text, text
# One that cannot be opened is left out with a warning: whoever else started the process is found.
(installed / "launchers-broken.so").write_text("broken")
text = megahost("mesh", "plain.toml", **path, **variables | {"RANK": "0", "LOCAL_RANK": "0"})
assert "2 ranks" in text and "launchers-broken.so is left out" in text, text
# An installed strategy of another SDK is left out: where its key is not known for that reason, it is said, too.
shutil.copy(pathlib.Path(fixture).parent / "other_sdk.so", installed / "parallel-mine.so")
text = megahost("recipe", "check", "plain.toml", "--set", "parallel.mine=2", code=2, **path)
assert "unknown option `mine` in parallel" in text and "parallel-mine.so is left out (" in text, text
