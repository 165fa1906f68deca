-- Choices that are misspelt, or have another program's name.
return {
  precision = "bfloat16",
  model = { use = "gpt", layers = 2, hidden = 64, heads = 4 },
  parallel = { context = 2, context_method = "rng", reduce_dtype = "bf61" },
  train = { iters = 1 },
}
