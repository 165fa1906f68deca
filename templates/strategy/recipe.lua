-- megahost run @name@.lua --nproc 2 --set parallel.@own_key@=2     (trains with it on two ranks)
-- megahost check @name@.lua --layouts '@own_key@=2'                (compares its numbers with one rank)
return {
  name = "@name@",
  plugins = { "build/@file@.so" },     -- not needed once it is installed
  model = { use = "llama", layers = 2, hidden = 32, heads = 4, seq_length = 32 },
  parallel = { @own_key@ = 1 },
  batch = { global = 8, micro = 4 },
  data = { use = "mock" },
  train = { iters = 20 },
  log = { interval = 5 },
}
