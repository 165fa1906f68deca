#pragma once
/// The table of our operations: what each is, in a form that one program can test, differentiate,
/// time and list.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace mh::test {

using Tensors = std::vector<at::Tensor>;
using Compute = std::function<at::Tensor(const Tensors&)>;

/// One use of an operation.
struct Case {
  std::string name;
  std::vector<std::vector<int64_t>> shapes; ///< shapes of the float inputs
  Compute ours;
  Compute plain;           ///< the same from plain ATen operations, differentiable
  Compute rival = nullptr; ///< code that `speed` compares with, if not `plain`
};

struct Operation {
  std::string name;
  std::vector<std::string> operators;     ///< operators of the dispatcher
  std::vector<at::ScalarType> kernels;    ///< types for which the CPU has a kernel of ours
  double float_tolerance, bf16_tolerance; ///< for values and gradients, relative to their norm
  std::vector<Case> cases;                ///< small
  Case large;                             ///< for `speed`: sizes of GPT-2 124M at 1,024 tokens
  double double_tolerance = 1e-12;        ///< larger if the operation sums in float32
};

/// Every operation, each once.
[[nodiscard]] const std::vector<Operation>& operations();

[[nodiscard]] Operation attention_operation();
[[nodiscard]] Operation dropped_attention_operation();
[[nodiscard]] Operation update_operation();
[[nodiscard]] Operation slots_operation();
[[nodiscard]] Operation grouped_operation();

} // namespace mh::test
