"""Ten steps of megatron-core's BERT and T5 on a CPU: what they print is tests/parity/golden/{bert,t5}.txt, with which
tests/plugins/golden.cpp compares ours. Weights and samples are made from seeds, as golden/README.md says. With
MEGAHOST_UPDATE_GOLDEN=1 the files are written."""

import functools
import math
import os
import pathlib
import sys
import zlib

import torch

import megatron_cpu

GOLDEN = pathlib.Path(__file__).parent / "golden"
STEPS, SAMPLES, VOCAB, HIDDEN, HEADS, LENGTH, DECODER_LENGTH = 10, 8, 256, 64, 8, 32, 24
LR, MIN_LR, WARMUP = 1e-3, 1e-4, 2


SIZES = dict(hidden_size=HIDDEN, num_attention_heads=HEADS)


def bert():
    # The form of Megatron's fusion of biases with GELU, which its head does not have.
    tanh = functools.partial(torch.nn.functional.gelu, approximate="tanh")
    return megatron_cpu.bert_model(VOCAB, LENGTH, num_layers=4, activation_func=tanh, **SIZES)


def t5():
    return megatron_cpu.t5_model(VOCAB, LENGTH, encoder_layers=3, num_layers=2, **SIZES)


def seed_weights(model):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:  # 1 and 0
                continue
            last = parameter.dim() == 2 and ("linear_proj" in name or "fc2" in name)
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
            parameter.copy_(noise * (0.02 / math.sqrt(8) if last else 0.02))


class Draws:
    """Integers of one step, in the order that they are asked for."""

    def __init__(self, step):
        self.generator = torch.Generator().manual_seed(100 + step)

    def __call__(self, low, high, *shape):
        return torch.randint(low, high, (SAMPLES, *shape), generator=self.generator)


def bert_losses(model, step):
    """Means over the hidden tokens, and over the samples, as pretrain_bert.py's loss_func has them."""
    draw = Draws(step)
    tokens, labels = draw(0, VOCAB, LENGTH), draw(0, VOCAB, LENGTH)
    hidden, ends, pivots, swapped = draw(0, 6, LENGTH) == 0, draw(20, LENGTH + 1), draw(5, 15), draw(0, 2)
    place = torch.arange(LENGTH)
    text = place < ends[:, None]
    types = ((place >= pivots[:, None]) & text).long()
    mask = (hidden & text).float()
    each, classes = model(tokens, text.long(), tokentype_ids=types, lm_labels=labels)
    return dict(lm=(each * mask).sum() / mask.sum(), sop=torch.nn.functional.cross_entropy(classes, swapped))


def t5_losses(model, step):
    from megatron.core.datasets.t5_dataset import T5MaskedWordPieceDataset

    draw = Draws(step)
    texts, words, labels = draw(1, VOCAB, LENGTH), draw(1, VOCAB, DECODER_LENGTH), draw(0, VOCAB, DECODER_LENGTH)
    ends, decoder_ends = draw(20, LENGTH + 1), draw(10, DECODER_LENGTH + 1)
    texts *= torch.arange(LENGTH) < ends[:, None]
    mask = (torch.arange(DECODER_LENGTH) < decoder_ends[:, None]).float()
    words *= mask.long()
    masks = T5MaskedWordPieceDataset.config_attention_mask(texts, words, None, None, use_local=True)
    each = model(texts, words, *masks, lm_labels=labels)
    return dict(lm=(each * mask).sum() / mask.sum())


def train(model, losses_of):
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    seed_weights(model)
    wrapped, optimizer = megatron_cpu.optimizer_of(model, lr=LR, decay=0.01, distributed=False, min_lr=MIN_LR, clip_grad=1.0)
    rates = OptimizerParamScheduler(optimizer, init_lr=0.0, max_lr=LR, min_lr=MIN_LR, lr_warmup_steps=WARMUP, lr_decay_steps=STEPS,
                                    lr_decay_style="cosine", start_wd=0.01, end_wd=0.01, wd_incr_steps=STEPS, wd_incr_style="constant")
    for step in range(STEPS):
        wrapped.zero_grad_buffer()
        optimizer.zero_grad()
        losses = losses_of(wrapped, step)
        sum(losses.values()).backward()
        wrapped.finish_grad_sync()
        _, norm, _ = optimizer.step()
        rates.step(increment=1)
        yield f"iter {step + 1} " + " ".join(f"{name} loss {loss.item():.7f}" for name, loss in losses.items()) + f" grad norm {norm:.7f}"


megatron_cpu.start()
failed = 0
for name, make, losses_of in (("bert", bert, bert_losses), ("t5", t5, t5_losses)):
    made = "".join(line + "\n" for line in train(make(), losses_of))
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("MEGAHOST_UPDATE_GOLDEN"):
        file.write_text(made)
    numbers = [[float(word) for word in text.split() if word[0].isdigit()] for text in (made, file.read_text())]
    worst = max(abs(ours - theirs) / theirs for ours, theirs in zip(*numbers, strict=True))
    print(f"{name}: {made}off by at most {worst:.1e}")
    failed += worst > 1e-6
sys.exit(failed and f"{failed} runs differ")
