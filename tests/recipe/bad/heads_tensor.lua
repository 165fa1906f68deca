return {
  model = { use = "llama", layers = 4, hidden = 96, heads = 6 },
  train = { iters = 10 },
  parallel = { tensor = 4 },
}
