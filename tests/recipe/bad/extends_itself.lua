return { extends = "extends_itself.lua" }
