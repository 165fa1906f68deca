return {
  model = { use = "llama", layers = 2 * Ki, hidden = math.flor(64.5) },
}
