-- GPT-2, the smallest of the four: 124 million parameters. gpt2_124m.toml says the same in TOML.
--
-- Sizes come from a preset, a row of recipes/presets/models.toml: 12 layers, hidden 768, 12 heads, 1,024
-- tokens. Keys here win over the preset. Lua adds arithmetic: the batch is counted in tokens below.

local seq_length = 1024
local tokens_per_step = 512 * 1024

return {
  name = "gpt2-124m",
  model = {
    preset = "gpt2-124m",
    seq_length = seq_length,
    dropout = 0.1, -- as GPT-2 was trained
    attention_dropout = 0.1,
  },

  -- The vocabulary stays GPT-2's 50,257 although bytes need 257 of it: same model, same cost per step.
  data = { use = "text", paths = { "@torch-headers" }, split = { 99, 1, 0 } },
  tokenizer = { use = "byte" },

  batch = { global = tokens_per_step // seq_length, micro = 4 }, -- 512 sequences, 4 at a time
  optimizer = { use = "adamw", lr = 6e-4, betas = { 0.9, 0.95 }, eps = 1e-8, weight_decay = 0.1, clip_grad = 1.0 },
  lr_schedule = { use = "cosine", warmup_iters = 700, decay_iters = 19000, min_lr = 6e-5 },
  train = { iters = 19000, eval_interval = 250, eval_iters = 5, seed = 1234 },
  checkpoint = { interval = 1000, keep = 3 },
  log = { interval = 1 },
}
