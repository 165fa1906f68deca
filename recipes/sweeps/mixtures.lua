-- Mixtures of experts under the layouts that their sources publish (presets/layouts.toml), with balanced experts and with
-- those of one rank getting twice the mean's rows. `notes` are printed next to a point and are no part of its recipe.
--
--   megahost sweep recipes/sweeps/mixtures.lua --plan        what each takes, on H100
--   megahost sweep recipes/sweeps/mixtures.lua --scale       all of them, shrunk to this machine, trained now

local layouts = {
  "mixtral-8x7b-32", "mixtral-8x7b-64", "mixtral-8x7b-64-vp8", "mixtral-8x22b-128", "qwen3-30b-a3b-16",
  "qwen3-235b-a22b-256", "deepseek-v3-1024", "deepseek-v3-2048",
}

local points = {}
for _, layout in ipairs(layouts) do
  for imbalance = 1, 2 do
    points[#points + 1] = {
      preset = layout,
      notes = { name = layout .. " x" .. imbalance, imbalance = imbalance, on = "h100" },
    }
  end
end

return {
  name = "mixtures",
  data = { use = "mock" },
  train = { iters = 20 },
  sweep = { list = points },
}
