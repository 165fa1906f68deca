-- megahost run @name@.lua     (trains it on made-up data)
return {
  name = "@name@",
  plugins = { "build/@file@.so" },     -- not needed once it is installed
  model = { use = "@name@", layers = 2, hidden = 32, heads = 4, seq_length = 32 },
  batch = { global = 8, micro = 4 },
  data = { use = "mock" },
  optimizer = { use = "adamw", lr = 1e-2 },
  train = { iters = 20 },
  log = { interval = 5 },
}
