// The headers that nearly every file that uses LibTorch reads first, compiled once for all of them
// (GCC; -Db_pch=false does without). It has no header of autograd: their templates, wanted or not,
// are made again in every file that reads them, which takes two seconds each.
#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>
