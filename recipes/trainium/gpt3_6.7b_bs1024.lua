-- GPT-3 6.7B on sixteen trn1.32xlarge, 1,024 sequences a step, as the Neuron reference for Megatron-LM trains it
-- (aws-neuron-reference-for-megatron-lm, pretrain_gpt3_6.7B_32layers_bf16_bs1024_slurm.sh). Not run on a Trainium by us: docs/xla.md.
--
--   megahost plan recipes/trainium/gpt3_6.7b_bs1024.lua --on trn1.32xlarge      or trn1n.32xlarge
--
-- It is planned only: devices of several machines are in no step yet. On one machine of 32 cores the same steps take
--   --set parallel.data=4

local lr = 1.2e-4
local decay = 123977

return {
  name = "gpt3-6.7b-bs1024",

  -- 32 layers, hidden 4,096. Eight ranks share 50,257 ids in equal parts where there are 51,200 of them, a multiple of 128
  -- for each, which is what Megatron-LM pads them to.
  model = { preset = "gpt-6.7b", vocab = 51200, init_std = 0.006 },

  -- 8 x 64 = 512 ranks, one for each core. Neighbouring cores split each matrix; optimizer state is shared by the 64 copies.
  parallel = { tensor = 8, sequence = true, data = 64, zero = 1 },
  recompute = { use = "none" },

  -- All in bf16: no float32 copies of weights, moments in bf16. The device rounds at random
  -- (NEURON_RT_STOCHASTIC_ROUNDING_EN=1, which the jobs of `megahost launch` set), so that small updates are not lost.
  precision = "bf16",
  optimizer = {
    use = "adamw",
    lr = lr,
    betas = { 0.9, 0.95 },
    weight_decay = 0.1,
    clip_grad = 1.0,
    master_weights = false,
    state_dtype = "bf16",
  },
  lr_schedule = { use = "cosine", warmup_iters = 155, decay_iters = decay, min_lr = lr / 10 },

  batch = { global = 1024, micro = 1 },
  data = { use = "indexed", paths = { "/fsx/gpt2/my-gpt2_text_document" }, split = { 100, 0, 0 } },
  tokenizer = { use = "gpt2", vocab = "/fsx/gpt2/gpt2-vocab.json", merges = "/fsx/gpt2/gpt2-merges.txt" },

  train = { iters = 143051 },
  checkpoint = { dir = "/fsx/runs/gpt3-6.7b-bs1024", interval = 2000 },
  log = { interval = 1 },

  -- Compiled programs, which the job that trains finds there.
  device = { use = "neuron", cache = "/fsx/programs" },
}
