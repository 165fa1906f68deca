-- A mixture of experts learns to write C++ from the quickstart's text: eight experts in each layer, of which a
-- token passes two, so that each token meets as many weights as in the quickstart.
--
--   megahost run recipes/mixture.lua
--   megahost run recipes/mixture.lua --nproc 4 --set parallel.data=4 --set parallel.expert=4 --set batch.micro=1
--
-- The second command shards the experts over four ranks, two each. Its numbers match the single-rank result.

return {
  extends = "quickstart",
  name = "mixture",
  model = {
    use = "moe",
    layers = 4, -- the sizes are the quickstart's
    hidden = 448,
    heads = 7,
    ffn_hidden = 1216,
    init_std = 0.05,
    seq_length = 256,
    experts = 8,
    experts_per_token = 2,
    expert_hidden = 608, -- half of the quickstart's feed-forward
    balance = { "auxiliary" }, -- a loss that keeps all experts busy
    z_weight = 1e-3,
  },
}
