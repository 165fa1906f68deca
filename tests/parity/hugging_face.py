"""`transformers` as the judge: the same weights give the same logits, loss and gradients."""

import pathlib
import sys
import tempfile

import models
import program

failed = 0
for case in models.CASES:
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        model = models.random_model(case)
        ids = models.random_ids(case)[:, :models.SEQ]
        models.save(case, model, ids, folder, length=models.SEQ)
        theirs = models.judge(model, ids)
        ours = program.evaluate(folder)
        problems = program.compare(ours, theirs)
        floor = program.FLOOR * program.norm(theirs[2].values())
        worst = max((program.norm([ours[2][name] - gradient]) / max(program.norm([gradient]), floor), name)
                    for name, gradient in theirs[2].items() if name in ours[2])
        print(f"{case.name}: loss {ours[1]} against {theirs[1]:.7f}; logits off by "
              f"{program.norm([ours[0] - theirs[0]]) / program.norm([theirs[0]]):.2e}, gradients by at most "
              f"{worst[0]:.2e} ({worst[1]})")
        for problem in problems:
            print(f"  {problem}")
        failed += bool(problems)
sys.exit(failed and f"{failed} of {len(models.CASES)} models differ")
