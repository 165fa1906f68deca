// What nearly every file that uses LibTorch reads first, compiled once for all of them (GCC;
// -Db_pch=false does without).
#include <torch/csrc/autograd/custom_function.h>

#include <ATen/core/Tensor.h>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>
