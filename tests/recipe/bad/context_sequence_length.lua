return {
  model = { use = "llama", layers = 4, hidden = 64, heads = 4, seq_length = 1002 },
  train = { iters = 10 },
  parallel = { context = 2 },
}
