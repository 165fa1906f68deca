"""`megahost bench gpu` over stand-ins: every command runs, whatever those before it came to; numbers of a GPU that computes
nothing are found wrong, and what is not a number (layouts of nothing, rates) is in the report.

usage: bench_gpu.py
"""

import json
import pathlib
import tempfile

import empty_gpu

problems = []


def check(what, holds, detail=""):
    if not holds:
        problems.append(f"{what}\n{detail}")


def refusals(folder):
    (folder / "full").mkdir()
    (folder / "full/file").write_text("")
    for words, expect in ((["-o", folder / "full"], "is there and not empty"), ([], "needs a folder for its results"),
                          (["-o", folder / "new", "--only", "nothing"], "no step of megahost bench gpu begins with nothing")):
        made = empty_gpu.call("bench", "gpu", *words)
        check(f"status 2: {expect}", made.status == 2, made.status)
        check(f"a refusal: {expect}", expect in made.err, made.err)
    check("with the names that there are", "losses-fp32" in made.err and "profile" in made.err, made.err)
    check("and nothing is left", not (folder / "new").exists())


def losses(folder):
    made = empty_gpu.call("bench", "gpu", "-o", folder / "report", "--only", "losses", "--only", "deterministic",
                          "--only", "masks", "--only", "gpt2-124m", "--set", "model.layers=1", "--set", "model.seq_length=64",
                          "--set", f'data.paths=["{empty_gpu.SOURCE / "core/include"}"]', timeout=280)
    check("status 1", made.status == 1, made.status)
    report = json.loads((folder / "report/report.json").read_text())["steps"]
    steps = {step["name"]: step for step in report}
    check("all steps that were asked for", list(steps) == ["losses-cpu", "losses-fp32", "losses-bf16", "losses-fp8",
          "deterministic-1", "deterministic-2", "masks", "gpt2-124m-plan", "gpt2-124m"], list(steps))
    check("the CPU's run is good", steps["losses-cpu"]["good"], steps["losses-cpu"])
    check("losses of nothing are wrong", not steps["losses-fp32"]["good"], steps["losses-fp32"])
    check("and it is said by how much", "largest difference of a loss from losses-cpu" in steps["losses-fp32"]["found"], steps)
    check("two runs of nothing have the same bits", steps["deterministic-2"]["good"], steps["deterministic-2"])
    check("attention of nothing is wrong under every mask",
          not steps["masks"]["good"] and steps["masks"]["found"].count("forward_error") == 26, steps["masks"])
    check("speed and memory stand next to the plan's", "% of the plan's; memory" in steps["gpt2-124m"]["found"],
          steps["gpt2-124m"])
    check("a line for each", made.out.count(" s  ") == len(steps), made.out)
    page = (folder / "report/report.html").read_text()
    check("a page", page.startswith("<!doctype html>") and "WRONG" in page and "not as they should be" in page, page[:500])


if __name__ == "__main__":
    empty_gpu.require()
    for work in (refusals, losses):
        with tempfile.TemporaryDirectory() as made:
            work(pathlib.Path(made))
    raise SystemExit("\n".join(problems) or 0)
