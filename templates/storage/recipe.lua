-- megahost run @name@.lua                  (a small Llama; its checkpoints go to @name@://runs/@name@)
-- megahost run @name@.lua --resume         (goes on from the newest of them)
-- megahost checkpoint ls @name@://runs/@name@ --plugin build/@file@.so
return {
  name = "@name@",
  plugins = { "build/@file@.so" },     -- not needed once it is installed
  model = { use = "llama", layers = 2, hidden = 32, heads = 4, seq_length = 32 },
  batch = { global = 8, micro = 4 },
  data = { use = "mock" },
  checkpoint = { dir = "@name@://runs/@name@", interval = 10, keep = 2 },
  storage = { use = "@name@", root = "build/objects" },
  train = { iters = 20 },
  log = { interval = 5 },
}
