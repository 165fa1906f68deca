return {
  model = { use = "llama", num_hidden_layers = 2, hidden = 32, heads = 4, max_position_embeddings = 16 },
  batch = { micro = 3, ["global-batch-size"] = 8 },
  training = { steps = 10, seq_len = 16 },
  checkpoint = { save_interval = 100, folder = "out" },
  use_flash_attn = true,
  lr = 1e-3,
}
