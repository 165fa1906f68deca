return {
  model = { use = "llama", layers = 4, hidden = 64, heads = 4 },
  train = { iters = 10 },
  parallel = { pipeline = 2, schedule = "zb-h1", virtual_stages = 2 },
  batch = { global = 8 },
}
