-- megahost run @name@.lua --resume=auto    (a small Llama; goes on where `meson test` has saved)
-- megahost checkpoint ls @name@://runs/@name@ --plugin build/@file@.so --set storage.root=build/objects
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
