return {
  model = { use = "llama", layers = 4, hidden = 64, heads = 4 },
  train = { iters = 10 },
  optimizer = { lr = 0.0001 },
  lr_schedule = { use = "cosine", min_lr = 0.001 },
}
