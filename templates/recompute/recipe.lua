-- megahost run @name@.lua     (trains a small Llama with it)
return {
  name = "@name@",
  plugins = { "build/@file@.so" },     -- not needed once it is installed
  model = { use = "llama", layers = 2, hidden = 32, heads = 4, seq_length = 32 },
  batch = { global = 8, micro = 4 },
  data = { use = "mock" },
  recompute = { use = "@name@", every = 2 },
  train = { iters = 20 },
  log = { interval = 5 },
}
