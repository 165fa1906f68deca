#include "core/nn/alibi.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <string>

namespace mh {

std::vector<double> alibi_slopes(int64_t heads) {
  const auto whole = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(heads)));
  const auto power = [whole](int64_t nominator, int64_t denominator) {
    return std::exp2(
        -8.0 * static_cast<double>(nominator) / static_cast<double>(denominator * whole)
    );
  };
  std::vector<double> slopes;
  for (int64_t head = 0; head < heads; ++head) {
    slopes.push_back(head < whole ? power(head + 1, 1) : power(2 * (head - whole) + 1, 2));
  }
  return slopes;
}

at::Tensor alibi_bias(
    const AlibiHeads& heads, int64_t length, const at::TensorOptions& options, StepContext& context
) {
  const at::ScalarType type =
      options.dtype().toScalarType() == at::kDouble ? at::kDouble : at::kFloat;
  const std::string key = "alibi " + std::to_string(length) + " " + std::to_string(heads.all) +
                          " " + std::to_string(heads.first) + " " + std::to_string(heads.count) +
                          " " + std::to_string(heads.factor);
  return context.cached(key, [&] {
    const std::vector<double> slopes = alibi_slopes(heads.all);
    std::vector<double> bias;
    bias.reserve(static_cast<size_t>(heads.count * (2 * length - 1)));
    for (int64_t head = heads.first; head < heads.first + heads.count; ++head) {
      const double slope = heads.factor * slopes.at(static_cast<size_t>(head));
      for (int64_t distance = 1 - length; distance < length; ++distance) {
        bias.push_back(-slope * static_cast<double>(std::abs(distance)));
      }
    }
    return at::tensor(bias, at::TensorOptions().dtype(type))
        .view({heads.count, 2 * length - 1})
        .to(options.device());
  });
}

} // namespace mh
