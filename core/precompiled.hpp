// The headers that nearly every file that uses LibTorch reads first, compiled once for all of them
// (GCC; -Db_pch=false does without). A header belongs here where most files read it: the templates
// of all are made again in every file, which takes a second for these. The header of autograd's
// functions, which few files read, would take one and a half more.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>
