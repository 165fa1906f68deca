return {
  model = { use = "llama", layers = 0, hidden = 64, heads = 4 },
  train = { iters = 10 },
}
