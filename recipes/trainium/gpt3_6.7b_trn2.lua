-- GPT-3 6.7B on one trn2.48xlarge: the recipe for trn1 (gpt3_6.7b.lua) of the Neuron reference for Megatron-LM
-- (aws-neuron-reference-for-megatron-lm, pretrain_gpt3_6.7B_32layers_bf16.sh). Not run on a Trainium by us: docs/xla.md.
--
--   megahost plan recipes/trainium/gpt3_6.7b_trn2.lua --on trn2.48xlarge  memory and time of a step
--   megahost launch recipes/trainium/gpt3_6.7b_trn2.lua --target slurm --instance trn2.48xlarge -o job
--                                                                         a job that compiles, one that trains

return {
  name = "gpt3-6.7b-trn2",
  extends = "gpt3_6.7b",
  parallel = { data = 8 }, -- 8 x 8 = 64 ranks, one for each two cores, which are one logical core
  checkpoint = { dir = "/fsx/runs/gpt3-6.7b-trn2" },
}
