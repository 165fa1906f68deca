"""Training steps next to those of plain PyTorch of the same model, in turn, and the memory of both.

usage: step_speed.py [ROW...] [--rounds N] [--steps N]

Each round runs every program for a few steps; ratios are of medians over all rounds. Memory is what is resident at most
beyond weights, gradients, master weights and optimizer state; ours computes norms and activations again in backward.
Exit status 1 if a row is below its floor.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

GPT = dict(use="gpt", layers=12, hidden=768, heads=12, ffn_hidden=3072, vocab=50257)
LLAMA = dict(use="llama", layers=12, hidden=768, heads=12, ffn_hidden=2048, vocab=50257)
BERT = dict(use="bert", layers=12, hidden=768, heads=12, ffn_hidden=3072, vocab=30522)
T5 = dict(use="t5", layers=6, hidden=512, heads=8, ffn_hidden=2048, vocab=32128, encoder_length=512)
SMALL = dict(use="gpt", layers=6, hidden=384, heads=6, ffn_hidden=1536, vocab=50257)
MICROBATCHES = 4


def row(model, precision, seq, floor, micro=1, share=0.0):
    return dict(model, precision=precision, seq_length=seq, micro=micro, floor=floor, share=share)


ROWS = {
    "gpt2-124m-bf16-1024": row(GPT, "bf16", 1024, 1.3, share=0.55),
    "llama-124m-bf16-1024": row(LLAMA, "bf16", 1024, 1.3, share=0.55),
    "gpt2-124m-bf16-4096": row(GPT, "bf16", 4096, 1.5),
    "llama-124m-bf16-4096": row(LLAMA, "bf16", 4096, 1.5),
    "gpt2-124m-fp32-1024": row(GPT, "fp32", 1024, 1.08),
    "llama-124m-fp32-1024": row(LLAMA, "fp32", 1024, 1.08),
    "gpt2-30m-bf16-256": row(SMALL, "bf16", 256, 1.3, micro=4),
    "gpt2-30m-fp32-256": row(SMALL, "fp32", 256, 1.08, micro=4),
    # Next to the modules of transformers.
    "bert-110m-bf16-512": row(BERT, "bf16", 512, 1.3, micro=4),
    "bert-110m-fp32-512": row(BERT, "fp32", 512, 1.1, micro=4),
    "t5-60m-bf16-512": row(T5, "bf16", 128, 1.3, micro=8),
    "t5-60m-fp32-512": row(T5, "fp32", 128, 1.1, micro=8),
}
# Where a model does not learn from any ids: what its recipe says in place of `tied`, data and tokenizer.
SAMPLES = {
    "bert": ({"dropout": 0.0, "attention_dropout": 0.0}, 'use = "bert"\npaths = ["@torch-headers"]', 'use = "byte"\nspecial = true'),
    "t5": ({"encoder_layers": T5["layers"], "dropout": 0.0}, 'use = "t5"\npaths = ["@torch-headers"]',
           'use = "byte"\nspecial = true\nextra_ids = 100'),
}
MEMORY = 0.5  # share of PyTorch's memory, at most
# Threads wait as they do in a run: spinning for a moment, then asleep.
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
ENVIRONMENT.setdefault("GOMP_SPINCOUNT", "20000")


def recipe(c, folder):
    own, data, tokenizer = SAMPLES.get(c["use"], ({"tied": True}, 'use = "mock"', f'use = "null"\nvocab = {c["vocab"]}'))
    fields = {key: c[key] for key in ("use", "layers", "hidden", "heads", "ffn_hidden", "vocab", "seq_length", "encoder_length")
              if key in c} | own
    lines = [f"{key} = {json.dumps(value)}" for key, value in fields.items()]
    path = pathlib.Path(folder, "recipe.toml")
    path.write_text("\n".join([
        'name = "step-speed"', f'precision = "{c["precision"]}"', "[model]", *lines, "[data]", data,
        "[tokenizer]", tokenizer, "[optimizer]", 'use = "adamw"', "clip_grad = 1.0",
        "lr = 1e-4", "[recompute]",
        'use = "selective"', 'parts = ["norms", "activations"]', "[batch]", f"global = {MICROBATCHES * c['micro']}", f"micro = {c['micro']}", "[train]",
        "iters = 1000", ""]))
    return path


def ours(c, steps):
    with tempfile.TemporaryDirectory() as folder:
        command = [os.environ["MEGAHOST"], "bench", "step", recipe(c, folder), "--steps", str(steps), "--json"]
        return json.loads(subprocess.run(command, check=True, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True).stdout)


def theirs(c, steps, compiled):
    given = dict(c, steps=steps, warm_up=1, compiled=compiled, microbatches=MICROBATCHES)
    command = [sys.executable, pathlib.Path(__file__).with_name("speed_opponent.py"), json.dumps(given)]
    done = subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        return None, done.stderr.strip().splitlines()[-1][:100]
    return json.loads(done.stdout), ""


def compare(name, rounds, steps):
    c = ROWS[name]
    our_steps, their_steps, ways, why = [], {}, {False: "eager", True: "compiled"}, ""
    mine = None
    their_memory, their_base = [], []
    for _ in range(rounds):
        mine = ours(c, steps)
        our_steps += mine["step_seconds"]
        for compiled in list(ways):
            found, why_not = theirs(c, steps, compiled)
            if found is None:
                why = f"; torch.compile: {why_not}"
                del ways[compiled]
                continue
            their_steps.setdefault(ways[compiled], []).extend(found["seconds"])
            their_memory.append((ways[compiled], found["rss"] - found["state"], found["base"]))
    way, their_step = min(((way, statistics.median(s)) for way, s in their_steps.items()), key=lambda pair: pair[1])
    ratio = their_step / statistics.median(our_steps)
    ours_more = mine["rss_gb"] - mine["state_gb"]
    theirs_more = min(more for w, more, _ in their_memory if w == way) / 1e9
    base = next(base for w, _, base in their_memory if w == way) / 1e9
    tokens = MICROBATCHES * c["micro"] * (c["seq_length"] + c.get("encoder_length", 0))
    share = mine["model_flops_per_token"] * tokens / statistics.median(our_steps) / 1e9 / mine["peak_gflops_per_s"]
    print(f"{name}: {ratio:.2f} times (floor {c['floor']}): {tokens / statistics.median(our_steps):.0f} tokens/s, "
          f"PyTorch {way} {tokens / their_step:.0f}{why}\n"
          f"  {100 * share:.0f}% of the peak of products, {mine['peak_gflops_per_s']:.0f} GFLOP/s\n"
          f"  memory beyond weights, gradients and state {ours_more:.2f} GB (program and libraries "
          f"{mine['base_gb']:.2f}), PyTorch {theirs_more:.2f} GB ({base:.2f}): {ours_more / theirs_more:.2f} times",
          flush=True)
    return ratio >= c["floor"] and share >= c["share"] and ours_more <= MEMORY * theirs_more


def rates():
    for what in ("gemm", "attention"):
        subprocess.run([os.environ["MEGAHOST"], "bench", what], check=True, env=ENVIRONMENT)
        print(flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", nargs="*", default=list(ROWS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=2)
    arguments = parser.parse_args()
    rates() if len(arguments.rows) == len(ROWS) else None
    good = [compare(name, arguments.rounds, arguments.steps) for name in arguments.rows]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
