return {
  model = { preset = "lama2-7b" },
  train = { iters = 10 },
}
