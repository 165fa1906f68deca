return {
  train = { iters = 10 },
}
