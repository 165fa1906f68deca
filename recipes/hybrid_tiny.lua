-- A hybrid of about 4 million parameters, Mamba-2 with one layer of attention, learns to write C++ from the headers that came
-- with LibTorch. Three minutes on two CPU cores. The loss on text that it has not seen is below 1.6 nats a byte
-- afterwards.
--
--   megahost run recipes/hybrid_tiny.lua
--   megahost generate runs/hybrid_tiny --prompt 'at::Tensor '
--
-- A layer is one part: M a mixer of Mamba-2, * attention, - a feed-forward. Attention needs no positions: the mixers
-- before it know the order of tokens.

local iters = machine.bf16 and 500 or 300

return {
  name = "hybrid_tiny",

  model = {
    use = "hybrid",
    pattern = "M-M*-M-",
    layers = 7,
    hidden = 320,
    heads = 5, -- attention's, 64 numbers each
    ffn_hidden = 960,
    mamba_heads = 10, -- 64 numbers each, twice as wide as the stream
    mamba_state = 64,
    init_std = 0.05, -- about 1 / sqrt(hidden): a short run has no time to outgrow small initial weights
    seq_length = 256,
  },

  data = { use = "text", paths = { "@torch-headers" }, split = { 95, 5, 0 } },
  tokenizer = { use = "byte" },

  batch = { global = 4, micro = 4 },
  optimizer = { use = "adamw", lr = 1.5e-3, betas = { 0.9, 0.95 }, weight_decay = 0.1, clip_grad = 1.0 },
  lr_schedule = { use = "cosine", warmup_iters = 20, decay_iters = iters, min_lr = 1.5e-4 },

  train = { iters = iters, eval_interval = iters // 4, eval_iters = 8, seed = 1234 },
  log = { interval = 10 },
  precision = "auto",
}
