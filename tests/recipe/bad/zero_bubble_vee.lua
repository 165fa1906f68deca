return {
  model = { use = "llama", layers = 4, hidden = 64, heads = 4 },
  train = { iters = 10 },
  parallel = { pipeline = 2, schedule = "zb-v" },
  batch = { global = 8 },
}
