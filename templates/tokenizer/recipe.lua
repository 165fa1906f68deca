-- megahost run @name@.lua     (a small Llama learns its tokens)
return {
  name = "@name@",
  plugins = { "build/@file@.so" },     -- not needed once it is installed
  model = { use = "llama", layers = 2, hidden = 32, heads = 4, seq_length = 32 },
  batch = { global = 8, micro = 4 },
  data = { use = "text", paths = { "@name@.lua" }, split = { 1, 0, 0 } },
  tokenizer = { use = "@name@" },
  train = { iters = 20 },
  log = { interval = 5 },
}
