-- A value that is computed far from the table: the caret finds it all the same.
local heads = 4
local model = { use = "llama", layers = 4, heads = heads, hidden = heads * 16 + 2 }
local recipe = { model = model, train = { iters = 10 } }
recipe.optimizer = { use = "adamw" }
recipe.optimizer.lr = -1 / 1000
return recipe
