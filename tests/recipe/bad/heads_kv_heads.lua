return {
  model = { use = "llama", layers = 4, hidden = 64, heads = 4, kv_heads = 3 },
  train = { iters = 10 },
}
