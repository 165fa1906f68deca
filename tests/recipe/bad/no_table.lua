local recipe = { model = { use = "llama" } }
