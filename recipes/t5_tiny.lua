-- A T5 of about 9 million parameters learns to fill holes in C++ from the headers that came with LibTorch. About three
-- minutes on two CPU cores; then the loss of the decoder's tokens is below 2.2 nats on files that it has not seen, and the run
-- ends with one of their texts whose holes it fills in.
--
--   megahost run recipes/t5_tiny.lua
--   megahost generate runs/t5_tiny --sequence 'encoder=#incl<extra_id_0> <string>' --prompt '[PAD]'
--
-- The encoder reads a text in which <extra_id_0>, <extra_id_1>, ... stand for what is missing; the decoder writes each of
-- these and what it stands for.

local iters = machine.bf16 and 700 or 400

return {
  name = "t5_tiny",

  model = {
    use = "t5",
    encoder_layers = 3,
    layers = 3, -- the decoder's
    hidden = 320,
    heads = 5,
    head_dim = 64,
    activation = "geglu_tanh", -- with tied = false this is version 1.1
    tied = false,
    encoder_length = 128, -- tokens that the encoder reads
    seq_length = 64, -- tokens that the decoder writes
  },

  data = {
    use = "t5",
    paths = { "@torch-headers" },
    split = { 95, 5, 0 },
    mask_prob = 0.3, -- share of the tokens that are taken out
    mean_span = 12, -- tokens in a row: as many bytes as T5's three tokens of a vocabulary
  },
  tokenizer = { use = "byte", special = true, extra_ids = 16 },

  batch = { global = 16, micro = 16 },
  optimizer = {
    use = "adamw",
    lr = 1e-3,
    betas = { 0.9, 0.95 },
    weight_decay = 0.1,
    clip_grad = 1.0,
    -- Scores are not scaled: positions tell apart what lies near only once their bias has grown to several units.
    groups = { { match = { "*.relative_bias.*" }, lr_multiplier = 50, decay_multiplier = 0 } },
  },
  lr_schedule = { use = "cosine", warmup_iters = 20, decay_iters = iters, min_lr = 1e-4 },

  train = { iters = iters, eval_interval = iters // 4, eval_iters = 8, seed = 1234 },
  log = { interval = 10 },
  precision = "auto",
}
