-- Learning rates that stay right as a model grows: one small Llama at widths 64, 128 and 256, each with five rates under muP
-- (Yang et al., "Tensor Programs V", arXiv:2203.03466, table 8, Adam). A model that is m times as wide as the narrowest has
--
--   weights of blocks    initial values of 1 / sqrt(m), learning rate of 1 / m
--   logits               of 1 / m (`logit_scale`); the head's own rate and values stay
--   embedding            the same values (`embedding_std`) and rate
--   attention            heads of the same size, so its scores stay as they are
--
--   megahost sweep recipes/sweeps/mup.lua      15 runs; sweep.html draws the losses
--
-- The best rate should be the same at all widths, so that it can be searched for at the narrowest.

local narrowest, std = 64, 0.08

local points = {}
for _, width in ipairs { 64, 128, 256 } do
  local m = width / narrowest
  for _, lr in ipairs { 1e-3, 2e-3, 4e-3, 8e-3, 16e-3 } do
    points[#points + 1] = {
      ["model.hidden"] = width,
      ["model.heads"] = width // 32,
      ["model.ffn_hidden"] = 4 * width,
      ["model.init_std"] = std / math.sqrt(m),
      ["model.embedding_std"] = std,
      ["model.logit_scale"] = 1 / m,
      ["optimizer.lr"] = lr,
      ["optimizer.groups"] = {
        { match = { "layers.*.attention.*", "layers.*.mlp.*" }, lr_multiplier = 1 / m },
      },
      notes = { name = ("width %d, lr %g"):format(width, lr) },
    }
  end
end

return {
  name = "mup",
  model = { use = "llama", layers = 2, seq_length = 128 },
  data = { use = "text", paths = { "@torch-headers" }, split = { 95, 5, 0 } },
  tokenizer = { use = "byte" },
  batch = { global = 8, micro = 8 },
  optimizer = { use = "adamw", betas = { 0.9, 0.95 }, weight_decay = 0, clip_grad = 1.0 },
  lr_schedule = { use = "cosine", warmup_iters = 20 },
  train = { iters = 300, eval_interval = 300, eval_iters = 16, seed = 1234 },
  checkpoint = { interval = 0 },
  precision = "fp32",
  sweep = { list = points },
}
