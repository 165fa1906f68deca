return {
  model = { use = "llama", layers = 4, hidden = 100, heads = 7 },
  train = { iters = 10 },
}
