return {
  model = { use = "llama", layers = 4, hidden = 64, heads = 4, seq_length = 1001 },
  train = { iters = 10 },
  parallel = { tensor = 2, sequence = true },
}
