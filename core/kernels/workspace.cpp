#include "core/kernels/workspace.hpp"

#include "core/kernels/gemm.hpp"

namespace mh::ops {

int64_t cpu_workspace(std::string_view name, c10::ArrayRef<const c10::IValue> arguments) {
  const auto tensor = [&](size_t i) -> const at::Tensor& { return arguments[i].toTensor(); };
  if (name == "megahost::attention") {
    return attention_workspace(
        tensor(0),
        tensor(1),
        arguments[10].toDouble(),
        arguments[17].toOptional<at::Tensor>(),
        arguments[24].toDouble(),
        false
    );
  }
  if (name == "megahost::attention_backward") {
    return attention_workspace(
        tensor(1),
        tensor(2),
        arguments[13].toDouble(),
        arguments[20].toOptional<at::Tensor>(),
        arguments[27].toDouble(),
        true
    );
  }
  if (name == "megahost::gemm_") {
    const auto type = tensor(1).scalar_type();
    const auto sums = tensor(0).scalar_type();
    return gemm_workspace(sums, tensor(1), tensor(2), type, arguments[3].toBool());
  }
  if (name == "megahost::fp8_product") { // its operands are made bf16
    const auto &a = tensor(0), &b = tensor(1);
    return 2 * (a.numel() + b.numel()) +
           gemm_workspace(at::kFloat, a, b, at::kBFloat16, /*add=*/false);
  }
  if (name == "megahost::fp8_round") { // in float32, and scaled
    const int64_t wide = 4 * tensor(0).numel();
    return tensor(0).scalar_type() == at::kFloat ? wide : 2 * wide;
  }
  if (name == "megahost::fp8_largest") {
    return static_cast<int64_t>(tensor(0).nbytes());
  }
  return 0;
}

} // namespace mh::ops
