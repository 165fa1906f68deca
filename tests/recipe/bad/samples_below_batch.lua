return {
  model = { use = "llama", layers = 4, hidden = 64, heads = 4 },
  train = { samples = 5 },
  batch = { global = 8, micro = 2 },
}
