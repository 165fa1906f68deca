return {
  model = { use = "llama", layers = "twelve", hidden = 64, heads = 4 },
  train = { iters = 10 },
}
