return {
  model = { use = "llama", layers = -1, hidden = 64, heads = 4, hiden = 64, activation = "relu" },
  train = { iters = 10 },
  optimizer = { lr = "fast" },
  batch = { micro = 0 },
  precision = "int8",
  log = { format = "xml" },
}
