return {
  model = { use = "llama", layers = 4, hidden = 64, heads = 4 },
  train = { iters = 10, option_00 = 0, option_01 = 1, option_02 = 2, option_03 = 3, option_04 = 4, option_05 = 5, option_06 = 6, option_07 = 7, option_08 = 8, option_09 = 9, option_10 = 10, option_11 = 11, option_12 = 12, option_13 = 13, option_14 = 14, option_15 = 15, option_16 = 16, option_17 = 17, option_18 = 18, option_19 = 19, option_20 = 20, option_21 = 21, option_22 = 22 },
}
