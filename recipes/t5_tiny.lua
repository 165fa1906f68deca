-- A T5 of about 4 million parameters learns to fill holes in C++, in the headers of ATen's operators that came with LibTorch.
-- About three minutes on two CPU cores; then the loss of the decoder's tokens is below 1.2 nats on files that it has not seen
-- (0.67 were measured after 720 steps), and the run ends with one of their texts whose holes it fills in.
--
--   megahost run recipes/t5_tiny.lua
--   megahost generate runs/t5_tiny --prompt '[PAD]' --temperature 0 --tokens 19 \
--     --sequence 'encoder=const at::Ten<extra_id_0> & self, const at::Scal<extra_id_1> & other, at::Te<extra_id_2>r & out'
--
-- The encoder reads a text in which <extra_id_0>, <extra_id_1>, ... stand for what is missing; the decoder writes each of
-- these and what it stands for.

local iters = machine.bf16 and 900 or 500

return {
  name = "t5_tiny",

  model = {
    use = "t5",
    encoder_layers = 2,
    layers = 2, -- the decoder's
    hidden = 256,
    heads = 4,
    activation = "geglu_tanh", -- with tied = false this is version 1.1
    tied = false,
    positions = "rope", -- "relative", as T5 has them, need a longer run
    rope_base = 100, -- texts are short
    bias = true, -- with biases a head looks at a distance before it knows any content
    encoder_length = 64, -- tokens that the encoder reads
    seq_length = 19, -- tokens that the decoder writes
  },

  data = {
    use = "t5",
    paths = { "@torch-headers" },
    extensions = { "_dispatch.h", "_native.h", "_ops.h" }, -- all headers are too much for a short run
    split = { 95, 5, 0 },
    mask_prob = 0.2, -- share of the tokens that are taken out
    mean_span = 5, -- tokens in a row
  },
  tokenizer = { use = "byte", special = true, extra_ids = 16 },

  batch = { global = 32, micro = 32 },
  optimizer = {
    use = "muon",
    steps = 3, -- iterations of Newton-Schulz
    lr = 4e-3,
    precision = machine.bf16 and "bf16" or "fp32",
    weight_decay = 0.1,
    clip_grad = 1.0,
  },
  lr_schedule = { use = "cosine", warmup_iters = 20, decay_iters = iters, min_lr = 1e-4 },

  train = { iters = iters, eval_interval = iters // 4, eval_iters = 8, seed = 1234 },
  log = { interval = 10 },
  precision = "auto",
}
