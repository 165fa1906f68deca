return {
  model = { use = "llama", layers = 4, hidden = 64, heads = 4 },
  train = { iters = 10 },
  batch = { global = 8, rampup_start = 2 },
}
