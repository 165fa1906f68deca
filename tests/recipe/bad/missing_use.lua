return {
  model = { layers = 4, hidden = 64, heads = 4 },
  train = { iters = 10 },
}
