-- megahost run @name@.lua     (opens the plugin; no key of a recipe names a strategy of your own yet)
return {
  name = "@name@",
  plugins = { "build/@file@.so" },     -- not needed once it is installed
  model = { use = "llama", layers = 2, hidden = 32, heads = 4, seq_length = 32 },
  batch = { global = 8, micro = 4 },
  data = { use = "mock" },
  train = { iters = 20 },
  log = { interval = 5 },
}
