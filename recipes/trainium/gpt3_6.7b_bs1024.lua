-- GPT-3 6.7B on sixteen trn1.32xlarge, 1,024 sequences a step, as the Neuron reference for Megatron-LM trains it
-- (aws-neuron-reference-for-megatron-lm, pretrain_gpt3_6.7B_32layers_bf16_bs1024_slurm.sh). Not run on a Trainium by us: docs/xla.md.
--
--   megahost plan recipes/trainium/gpt3_6.7b_bs1024.lua --on trn1.32xlarge      or trn1n.32xlarge
--
-- It is planned only: devices of several machines are in no step yet. On one machine of 32 cores the same steps take
--   --set parallel.data=4

local lr = 1.2e-4

return {
  name = "gpt3-6.7b-bs1024",
  extends = "gpt3_6.7b",
  model = { init_std = 0.006 },
  parallel = { data = 64 }, -- 8 x 64 = 512 ranks, one for each core
  optimizer = { lr = lr, betas = { 0.9, 0.95 }, weight_decay = 0.1 },
  lr_schedule = { warmup_iters = 155, decay_iters = 123977, min_lr = lr / 10 },
  batch = { global = 1024 },
  train = { iters = 143051 },
  checkpoint = { dir = "/fsx/runs/gpt3-6.7b-bs1024" },
}
