-- megahost run @name@.lua                  (a small Llama, saved in the format)
-- megahost run @name@.lua --resume         (goes on from its newest checkpoint)
-- megahost eval @name@.lua --weights runs/@name@
return {
  name = "@name@",
  plugins = { "build/@file@.so" },     -- not needed once it is installed
  model = { use = "llama", layers = 2, hidden = 32, heads = 4, seq_length = 32 },
  batch = { global = 8, micro = 4 },
  data = { use = "mock" },
  checkpoint = { use = "@name@", interval = 10, keep = 2 },
  train = { iters = 20 },
  log = { interval = 5 },
}
