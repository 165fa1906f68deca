"""Plain PyTorch, trained as well as a careful user would: prints the times of a few steps and the memory as JSON.

usage: speed_opponent.py '{"use": "gpt", "layers": 12, ..., "precision": "bf16", "compiled": false, "steps": 3}'

BERT and T5 are the modules of transformers. SDPA, fused AdamW, gradients clipped; in bf16 with float32 master weights, optimizer state and accumulated gradients.
"""

import json
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.llama = c["use"] == "llama"
        h, bias = c["hidden"], not self.llama
        norm = nn.RMSNorm if self.llama else nn.LayerNorm
        self.norms = nn.ModuleList(norm(h, eps=1e-5) for _ in range(2))
        self.qkv = nn.Linear(h, 3 * h, bias=bias)
        self.out = nn.Linear(h, h, bias=bias)
        self.up = nn.Linear(h, (2 if self.llama else 1) * c["ffn_hidden"], bias=bias)
        self.down = nn.Linear(c["ffn_hidden"], h, bias=bias)

    def forward(self, x, turn):
        b, s, h = x.shape
        heads = self.c["heads"]
        q, k, v = self.qkv(self.norms[0](x)).view(b, s, 3, heads, h // heads).permute(2, 0, 3, 1, 4)
        if self.llama:
            q, k = rotate(q, turn), rotate(k, turn)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, s, h))
        y = self.up(self.norms[1](x))
        if self.llama:
            gate, up = y.chunk(2, -1)
            y = F.silu(gate) * up
        else:
            y = F.gelu(y, approximate="tanh")
        return x + self.down(y)


def rotate(x, turn):
    a, b = x.float().chunk(2, -1)
    cosine, sine = turn
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), -1).to(x.dtype)


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        h = c["hidden"]
        self.word = nn.Embedding(c["vocab"], h)
        self.llama = c["use"] == "llama"
        if self.llama:
            half = h // c["heads"] // 2
            angles = torch.arange(c["seq_length"])[:, None] * 10000.0 ** -(torch.arange(half) / half)
            self.register_buffer("angles", torch.stack((angles.cos(), angles.sin())), persistent=False)
        else:
            self.position = nn.Embedding(c["seq_length"], h)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c["layers"]))
        self.norm = (nn.RMSNorm if self.llama else nn.LayerNorm)(h, eps=1e-5)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, labels):
        x = self.word(tokens)
        turn = None
        if self.llama:
            turn = self.angles
        else:
            x = x + self.position.weight[: tokens.size(1)]
        for block in self.blocks:
            x = block(x, turn)
        logits = F.linear(self.norm(x), self.word.weight)
        return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


class FromTransformers(nn.Module):
    llama = False

    def __init__(self, c):
        super().__init__()
        import transformers
        if c["use"] == "bert":
            config = transformers.BertConfig(
                vocab_size=c["vocab"], hidden_size=c["hidden"], num_hidden_layers=c["layers"], num_attention_heads=c["heads"],
                intermediate_size=c["ffn_hidden"], max_position_embeddings=c["seq_length"], hidden_dropout_prob=0,
                attention_probs_dropout_prob=0, attn_implementation="sdpa")
            self.model = transformers.BertForPreTraining(config)
        else:
            config = transformers.T5Config(
                vocab_size=c["vocab"], d_model=c["hidden"], d_kv=c["hidden"] // c["heads"], d_ff=c["ffn_hidden"],
                num_layers=c["layers"], num_heads=c["heads"], dropout_rate=0, pad_token_id=0, decoder_start_token_id=0,
                attn_implementation="sdpa")
            self.model = transformers.T5ForConditionalGeneration(config)
        self.length = c["seq_length"]
        self.is_bert = c["use"] == "bert"

    def forward(self, tokens, labels):
        if self.is_bert:  # a seventh of the tokens is hidden
            hidden = torch.arange(tokens.size(1)) % 7 == 0
            order = torch.zeros(tokens.size(0), dtype=torch.long)
            return self.model(tokens, labels=labels.masked_fill(~hidden, -100), next_sentence_label=order).loss
        return self.model(tokens, labels=labels[:, :self.length].contiguous()).loss


def resident(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(name))


def train(c):
    torch.manual_seed(1)
    base = resident("VmRSS:")
    model = (FromTransformers if c["use"] in ("bert", "t5") else Model)(c)
    low = c["precision"] == "bf16"
    masters = list(model.parameters())
    if low:
        masters = [parameter.detach().clone() for parameter in model.parameters()]
        angles = model.angles if model.llama else None
        model.bfloat16()
        if model.llama:
            model.angles = angles
        for parameter, master in zip(model.parameters(), masters):
            master.grad = torch.zeros_like(master)

            def accumulate(p, main=master.grad):
                main.add_(p.grad)
                p.grad = None

            parameter.register_post_accumulate_grad_hook(accumulate)
    optimizer = torch.optim.AdamW(masters, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    run = torch.compile(model) if c["compiled"] else model
    micro, seq, count = c["micro"], c["seq_length"], c["microbatches"]
    data = torch.randint(c["vocab"], (count, micro, c.get("encoder_length", seq) + 1))
    seconds = []
    for step in range(c["warm_up"] + c["steps"]):
        begin = time.perf_counter()
        for batch in data:
            (run(batch[:, :-1], batch[:, 1:]) / count).backward()
        torch.nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        if low:
            torch._foreach_copy_([parameter.detach() for parameter in model.parameters()], masters)
            torch._foreach_zero_([master.grad for master in masters])
        else:
            optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - begin)
    elements = sum(parameter.numel() for parameter in masters)
    state = elements * (18 if low else 16)
    return dict(seconds=seconds[c["warm_up"]:], elements=elements, rss=resident("VmHWM:"), state=state, base=base)


if __name__ == "__main__":
    print(json.dumps(train(json.loads(sys.argv[1]))))
