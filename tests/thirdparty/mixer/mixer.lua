-- Names the plugin by its file: relative to this recipe, or with --plugin.
return {
  name = "mixer",
  model = { use = "mixer", layers = 2, hidden = 32, seq_length = 32 },
  data = { use = "mock" },
  batch = { global = 4, micro = 2 },
  optimizer = { use = "adamw", lr = 1e-2 },
  train = { iters = 5 },
  log = { interval = 1 },
}
