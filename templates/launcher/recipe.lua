-- megahost run @name@.lua --plugin build/@file@.so     (its processes are the launcher's)
-- No recipe names a launcher: ranks are known before it is read. An installed one needs no --plugin.
return {
  name = "@name@",
  model = { use = "llama", layers = 2, hidden = 32, heads = 4, seq_length = 32 },
  batch = { global = 8, micro = 4 },
  data = { use = "mock" },
  train = { iters = 20 },
  log = { interval = 5 },
}
