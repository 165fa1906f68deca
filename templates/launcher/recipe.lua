-- megahost run @name@.lua     (in each process that the launcher starts; alone, it is a run on one rank)
return {
  name = "@name@",
  plugins = { "build/@file@.so" },     -- not needed once it is installed
  launcher = "@name@",                 -- or { use = "@name@", OPTION = ... }; an installed one is found without
  model = { use = "llama", layers = 2, hidden = 32, heads = 4, seq_length = 32 },
  batch = { global = 8, micro = 4 },
  data = { use = "mock" },
  train = { iters = 20 },
  log = { interval = 5 },
}
