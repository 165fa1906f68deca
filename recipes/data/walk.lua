-- A small Llama learns from two corpora, code and prose, and is evaluated on each: the recipe of docs/data.md, which
-- makes the corpora. Copy it to where they lie; paths are meant from the recipe's folder.
--
--   megahost run walk.lua

return {
  extends = "quickstart",
  name = "walk",
  model = { use = "llama", layers = 2, hidden = 128, heads = 4, ffn_hidden = 352, seq_length = 128 },

  -- The tokenizer of a model whose files you have: { use = "hf", path = "Meta-Llama-3-8B" }. Bytes need none.
  tokenizer = { use = "byte" },

  data = {
    use = "indexed",
    sources = {
      { name = "code", path = "corpora/code_text_document", weight = 0.7 },
      { name = "prose", path = "corpora/prose_text_document", weight = 0.3 },
    },
    split = { 90, 10, 0 },
    validation_by_source = true,
  },

  batch = { global = 8, micro = 8 },
  lr_schedule = { use = "cosine", warmup_iters = 10, decay_iters = 100, min_lr = 1e-4 },
  train = { iters = 100, eval_interval = 50, eval_iters = 4 },
}
