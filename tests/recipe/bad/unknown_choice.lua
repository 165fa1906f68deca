return {
  model = { use = "llama", layers = 4, hidden = 64, heads = 4, activation = "swigelu" },
  train = { iters = 10 },
}
