-- A first run: a Llama of about 10 million parameters learns to write C++ from the headers that came with
-- LibTorch. One and a half to three minutes on two CPU cores.
--
--   megahost run recipes/quickstart.lua
--   megahost run recipes/quickstart.lua --set train.iters=50 --set optimizer.lr=3e-4
--   megahost recipe show recipes/quickstart.lua     every value, those not written here too
--
-- A recipe is a Lua file that returns one table. A key that is left out has a default.

-- Optimizer steps: what fits into three minutes. `precision = "auto"` below follows the same fact.
local iters = machine.bf16 and 640 or 360

return {
  name = "quickstart",

  -- The transformer. Each choice is a field: `megahost plugins show llama` lists them all.
  model = {
    use = "llama", -- rotary positions, RMSNorm, SwiGLU
    layers = 4,
    hidden = 448, -- width of the residual stream
    heads = 7, -- 64 numbers each
    ffn_hidden = 1216, -- about 8/3 of hidden, as Llama has it
    init_std = 0.05, -- about 1 / sqrt(hidden): a short run has no time to outgrow small initial weights
    seq_length = 256, -- tokens that the model sees at once
  },

  -- Any text will do: name files or folders instead. "@torch-headers" is the C++ headers of the LibTorch that
  -- the program runs on, tens of megabytes that everybody has.
  data = {
    use = "text",
    paths = { "@torch-headers" },
    split = { 95, 5, 0 }, -- train, validation, test
  },
  tokenizer = { use = "byte" }, -- each byte is a token: the loss is in nats per byte

  batch = { global = 4, micro = 4 }, -- sequences per step, and per forward pass
  optimizer = { use = "adamw", lr = 1e-3, betas = { 0.9, 0.95 }, weight_decay = 0.1, clip_grad = 1.0 },
  lr_schedule = { use = "cosine", warmup_iters = 20, decay_iters = iters, min_lr = 1e-4 },

  train = { iters = iters, eval_interval = iters // 8, eval_iters = 8, seed = 1234 },
  -- Saved at the end, in runs/quickstart; go on with --resume.
  log = { interval = 10 },

  -- "auto": bf16 where the CPU multiplies it in hardware, else fp32. The program says which.
  precision = "auto",
}
