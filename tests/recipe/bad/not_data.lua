return {
  model = { use = "llama", layers = function() return 4 end },
  train = { iters = 10 },
}
