return {
  model = { use = "llama", layers = 4, hidden = 64, heads = 4 },
  train = { iters = 10, eval_interval = 5 },
  data = { split = { 100, 0, 0 } },
}
