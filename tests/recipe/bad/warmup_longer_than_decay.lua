return {
  model = { use = "llama", layers = 4, hidden = 64, heads = 4 },
  train = { iters = 10 },
  lr_schedule = { use = "cosine", warmup_iters = 8, decay_iters = 8 },
}
