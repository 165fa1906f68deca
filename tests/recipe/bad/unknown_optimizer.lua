return {
  model = { use = "llama", layers = 4, hidden = 64, heads = 4 },
  train = { iters = 10 },
  optimizer = { use = "adamq", lr = 0.001 },
}
