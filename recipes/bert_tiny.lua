-- A BERT of about 3 million parameters learns to find hidden bytes of C++ in the headers that came with LibTorch. About
-- three minutes on two CPU cores; then it finds more than a quarter of them in files that it has not seen, and the order of
-- two passages in more than three of five cases.
--
--   megahost run recipes/bert_tiny.lua
--   megahost eval recipes/bert_tiny.lua --weights runs/bert_tiny      its loss and accuracy on them
--
-- `lm accuracy` is the share of hidden tokens whose best guess is right, `sop accuracy` that of pairs of passages whose
-- order is.

local iters = machine.bf16 and 700 or 400

return {
  name = "bert_tiny",

  -- Norms lie before the parts, as in Megatron-LM. Google's BERT is norm_placement = "post".
  model = {
    use = "bert",
    layers = 4,
    hidden = 256,
    heads = 4,
    norm_placement = "pre",
    norm_eps = 1e-5,
    scaled_init = true,
    init_std = 0.06, -- a short run has no time to outgrow small initial weights
    positions = "rope", -- "learned", as BERT has them, need a longer run
    seq_length = 128,
  },

  data = {
    use = "bert",
    paths = { "@torch-headers" },
    split = { 95, 5, 0 },
    pair = "order", -- the second passage follows the first, or both are swapped
    whole_words = false, -- single bytes; true is harder
    mask_prob = 0.15,
    short_seq_prob = 0,
  },
  tokenizer = { use = "byte", special = true }, -- bytes and [CLS], [SEP], [MASK], ...

  batch = { global = 16, micro = 16 },
  optimizer = { use = "adamw", lr = 1e-3, betas = { 0.9, 0.95 }, weight_decay = 0.1, clip_grad = 1.0 },
  lr_schedule = { use = "cosine", warmup_iters = 20, decay_iters = iters, min_lr = 1e-4 },

  train = { iters = iters, eval_interval = iters // 4, eval_iters = 8, seed = 1234 },
  log = { interval = 10 },
  precision = "auto",
}
