return {
  model = { "llama", layers = 4 },
}
