-- GPT-3 6.7B on one trn1.32xlarge, as the Neuron reference for Megatron-LM trains it
-- (aws-neuron-reference-for-megatron-lm, pretrain_gpt3_6.7B_32layers_bf16.sh). Not run on a Trainium by us: docs/xla.md.
--
--   megahost plan recipes/trainium/gpt3_6.7b.lua --on trn1.32xlarge       memory and time of a step
--   megahost launch recipes/trainium/gpt3_6.7b.lua --target slurm --instance trn1.32xlarge -o job
--                                                                         a job that compiles, one that trains

local lr = 1.5e-4
local decay = 320000

return {
  name = "gpt3-6.7b",

  -- 32 layers, hidden 4,096. Eight ranks share 50,257 ids in equal parts where there are 51,200 of them, a multiple of 128
  -- for each, which is what Megatron-LM pads them to.
  model = { preset = "gpt-6.7b", vocab = 51200 },

  -- 8 x 4 = 32 ranks, one for each core. Neighbouring cores split each matrix; optimizer state is shared by the four copies.
  parallel = { tensor = 8, sequence = true, data = 4, zero = 1 },
  recompute = { use = "none" },

  -- All in bf16: no float32 copies of weights, moments in bf16. The device rounds at random
  -- (NEURON_RT_STOCHASTIC_ROUNDING_EN=1, which the jobs of `megahost launch` set), so that small updates are not lost.
  precision = "bf16",
  optimizer = {
    use = "adamw",
    lr = lr,
    betas = { 0.9, 0.999 },
    weight_decay = 0.01,
    clip_grad = 1.0,
    master_weights = false,
    state_dtype = "bf16",
  },
  lr_schedule = { use = "cosine", warmup_iters = decay // 100, decay_iters = decay, min_lr = 1e-5 },

  batch = { global = 64, micro = 1 },
  data = { use = "indexed", paths = { "/fsx/gpt2/my-gpt2_text_document" }, split = { 100, 0, 0 } },
  tokenizer = { use = "gpt2", vocab = "/fsx/gpt2/gpt2-vocab.json", merges = "/fsx/gpt2/gpt2-merges.txt" },

  train = { iters = 10000 },
  checkpoint = { dir = "/fsx/runs/gpt3-6.7b", interval = 2000 },
  log = { interval = 1 },

  -- Compiled programs, which the job that trains finds there.
  device = { use = "neuron", cache = "/fsx/programs" },
}
