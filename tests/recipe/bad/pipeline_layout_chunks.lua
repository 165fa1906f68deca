return {
  model = { use = "llama", layers = 4, hidden = 64, heads = 4 },
  train = { iters = 10 },
  parallel = { pipeline = 4, pipeline_layout = "embed+2|2+head" },
  batch = { global = 8 },
}
