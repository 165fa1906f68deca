return {
  model = { use = "llama",
  train = { iters = 10 },
