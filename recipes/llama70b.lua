-- Llama 2 70B on 32 GPUs: 80 layers, hidden 8,192, 64 heads that share 8 key-value heads.
--
-- On a machine without 32 ranks:
--   megahost run recipes/llama70b.lua --scale     the same structure, shrunk to this machine and trained now
--   megahost plan recipes/llama70b.lua            memory, traffic and time per step, without any of it

local warmup, decay = 2000, 500000
local lr = 1.5e-4

return {
  name = "llama2-70b",
  model = { preset = "llama2-70b", seq_length = 4096 },

  -- 4 x 2 x 4 = 32 ranks. Four GPUs of one machine split each matrix (tensor) and, between the products, the
  -- sequence; two stages hold 40 layers each (pipeline); four copies share the batch (data), and each keeps a
  -- quarter of the optimizer's state (zero 1).
  parallel = {
    tensor = 4,
    sequence = true,
    pipeline = 2,
    data = 4,
    zero = 1,
    schedule = "1f1b",
  },
  -- Core attention is recomputed in the backward pass: little work, much memory.
  -- A rank takes 97 GiB of a GPU (megahost plan recipes/llama70b.lua --on h200).
  recompute = { use = "selective", parts = { "core_attention" } },

  optimizer = { use = "adamw", lr = lr, betas = { 0.9, 0.95 }, eps = 1e-8, weight_decay = 0.1, clip_grad = 1.0 },
  lr_schedule = { use = "cosine", warmup_iters = warmup, decay_iters = decay, min_lr = lr / 10 },
  precision = "bf16", -- weights and activations; gradients and the optimizer's copy of the weights are fp32

  -- 1,024 sequences per step: each of the four copies works through 256 microbatches of one.
  batch = { global = 1024, micro = 1 },
  data = { use = "text", paths = { "corpus" }, split = { 99, 1, 0 } }, -- text of yours, next to this file
  tokenizer = { use = "byte" },

  train = { iters = decay, eval_interval = 1000, eval_iters = 10, seed = 1234 },
  checkpoint = { interval = 1000 },
  log = { interval = 10 },
  device = "cuda",
}
