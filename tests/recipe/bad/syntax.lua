return {
  model = { use = "llama", layers = 4 hidden = 64 },
  train = { iters = 10 },
}
