return {
  model = { use = "llama", layers = 2.5, hidden = 64, heads = 4 },
  train = { iters = 10 },
}
