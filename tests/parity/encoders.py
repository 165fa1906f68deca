"""`transformers` as the judge of BERT, DPR and T5: the same weights and the same arrays of a corpus give the same logits, losses and
gradients."""

import pathlib
import sys
import tempfile

import torch

import encoder_models
import program
from encoder_models import BATCH

failed = 0


def evaluate(case):
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        case.save(folder)
        return program.evaluate(folder, outputs=case.outputs)


def report(case, ours, theirs, problems):
    global failed
    print(f"{case.name}: loss {ours[1]} against {theirs[1]:.7f}; logits off by "
          f"{program.norm([ours[0] - theirs[0]]) / program.norm([theirs[0]]):.2e}", flush=True)
    for problem in problems:
        print(f"  {problem}")
    failed += bool(problems)


def split_noise(names, ours, theirs):
    """Takes out gradients that are 0 but for rounding in both programs."""
    return [gradients.pop(name) for name in names for gradients in (ours, theirs)]


def check_bert(case):
    """The loss is the sum of both means."""
    arrays = case.arrays
    made = case.forward(case.models)
    each = torch.nn.functional.cross_entropy(made[0].transpose(1, 2), arrays["labels"], reduction="none")
    loss = (each * arrays["loss_mask"]).sum() / arrays["loss_mask"].sum()
    total = loss
    if len(made) > 1:
        total = loss + torch.nn.functional.cross_entropy(made[1], arrays["order_labels"][:, 0])
    total.backward()
    gradients = case.gradients()
    logits, ours_loss, ours = evaluate(case)
    logits = logits * (arrays["segments"] == 0)[:, :, None]  # padding sees other tokens, and its results are not read
    # A key's bias moves all scores of a query alike.
    noise = split_noise([name for name in gradients if name.endswith("key.bias")], ours, gradients)
    theirs = (made[0].detach(), loss.item(), gradients)
    problems = program.compare((logits, ours_loss, ours), theirs)
    if not program.norm(noise) <= 1e-7 * program.norm(gradients.values()):
        problems.append("the gradient of a key's bias is not 0")
    report(case, (logits, ours_loss), theirs, problems)


def check_t5(case):
    logits, = case.forward(case.models)
    loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), case.arrays["labels"])
    loss.backward()
    theirs = (logits.detach(), loss.item(), case.gradients())
    ours = evaluate(case)
    report(case, ours, theirs, program.compare(ours, theirs))


def check_dpr(case):
    """The loss is that of in-batch negatives."""
    queries, contexts = case.forward(case.models)
    loss = torch.nn.functional.cross_entropy(queries @ contexts.T, torch.arange(BATCH))
    loss.backward()
    gradients = case.gradients()
    ours = evaluate(case)
    # A bias that moves all contexts alike changes no loss.
    noise = split_noise([name for name, gradient in gradients.items() if name.endswith("key.bias") or
                         (name.startswith("ctx_") and name.endswith("bias") and gradient.norm() < 1e-6)], ours[2], gradients)
    theirs = (torch.cat([queries, contexts]).detach(), loss.item(), gradients)
    problems = program.compare(ours, theirs)
    if not program.norm(noise) <= 1e-6 * program.norm(gradients.values()):
        problems.append("the gradient of a bias that changes no score is not 0")
    report(case, ours, theirs, problems)


for cases, check in ((encoder_models.BERTS, check_bert), (encoder_models.DPRS, check_dpr), (encoder_models.T5S, check_t5)):
    for case in cases:
        check(case)
sys.exit(failed and f"{failed} models differ")
