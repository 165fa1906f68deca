-- The ten models of the Megatron-LM scaling study (arXiv:2104.04473, table 1), 1.7 to 1,008 billion parameters on 32 to
-- 3,072 A100, each under its published layout. `notes` are printed next to a point and are no part of its recipe.
--
--   megahost sweep recipes/sweeps/model_sizes.lua --list              the ten recipes
--   megahost sweep recipes/sweeps/model_sizes.lua --plan              published and predicted TFLOP/s
--   megahost sweep recipes/sweeps/model_sizes.lua --scale             all of them, shrunk to this machine, trained now

-- TFLOP/s per GPU as the table has them; `fitted` rows may set constants of a model of speed, the others are predicted.
local rows = {
  { "1.7b", 32, 137, true },
  { "3.6b", 64, 138 },
  { "7.5b", 128, 142 },
  { "18.4b", 256, 135 },
  { "39.1b", 512, 138 },
  { "76.1b", 1024, 140 },
  { "145.6b", 1536, 148 },
  { "310.1b", 1920, 155 },
  { "529.6b", 2520, 163 },
  { "1008b", 3072, 163, true },
}

local points = {}
for i, row in ipairs(rows) do
  local size, gpus, tflops, fitted = row[1], row[2], row[3], row[4] or false
  points[i] = {
    preset = "gpt-" .. size .. "-" .. gpus,
    notes = {
      name = size, published_tflops = tflops, fitted = fitted, on = "a100-megatron-2021", flops = "arXiv:2104.04473",
    },
  }
end

return {
  name = "model-sizes",
  model = { dropout = 0.1 },
  parallel = { overlap = false, reduce_dtype = "bf16" }, -- sums of 16 bits after the passes, as the study's program
  data = { use = "mock" },
  train = { iters = 20 },
  sweep = { list = points },
}
