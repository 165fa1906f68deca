return {
  model = { use = "llama", layers = 4, hidden = 64, heads = 8, kv_heads = 2, seq_length = 1024 },
  train = { iters = 10 },
  parallel = { context = 4, context_method = "all_to_all" },
}
