-- megahost schedule @name@.lua --stages 4 --microbatches 8       (draws it)
-- megahost run @name@.lua --nproc 2 --set parallel.pipeline=2    (trains with it)
return {
  name = "@name@",
  plugins = { "build/@file@.so" },     -- not needed once it is installed
  model = { use = "llama", layers = 2, hidden = 32, heads = 4, seq_length = 32 },
  batch = { global = 8, micro = 4 },
  data = { use = "mock" },
  parallel = { schedule = { use = "@name@", group = 2 } },
  train = { iters = 20 },
  log = { interval = 5 },
}
