return {
  model = { use = "llama", layers = 4, hidden = 64, heads = 4 },
  train = { iters = 10 },
  optimizer = { weight_decay_start = 0.01 },
}
