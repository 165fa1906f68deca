return {
  model = { use = "llama", layers = 4, hidden = 64, heads = 4, dropout = 1.5 },
  train = { iters = 10 },
}
