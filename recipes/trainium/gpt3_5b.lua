-- GPT-3 5B on one trn1.32xlarge, as the Neuron reference for Megatron-LM trains it
-- (aws-neuron-reference-for-megatron-lm, pretrain_gpt3_5B_24layers_bf16.sh). Not run on a Trainium by us: docs/xla.md.
--
--   megahost plan recipes/trainium/gpt3_5b.lua --on trn1.32xlarge         memory and time of a step
--   megahost launch recipes/trainium/gpt3_5b.lua --target slurm --instance trn1.32xlarge -o job
--                                                                         a job that compiles, one that trains

return {
  name = "gpt3-5b",
  extends = "gpt3_6.7b",
  model = { layers = 24 }, -- the first 24 of the 32
  checkpoint = { dir = "/fsx/runs/gpt3-5b" },
}
