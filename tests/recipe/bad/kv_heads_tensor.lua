return {
  model = { use = "llama", layers = 4, hidden = 96, heads = 12, kv_heads = 6 },
  train = { iters = 10 },
  parallel = { tensor = 4 },
}
