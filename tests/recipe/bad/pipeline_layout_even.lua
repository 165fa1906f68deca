return {
  model = { use = "llama", layers = 6, hidden = 64, heads = 4 },
  train = { iters = 10 },
  parallel = { pipeline = 4, pipeline_layout = "even" },
  batch = { global = 8 },
}
