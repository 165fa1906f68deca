#include "core/program/dropout.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <array>
#include <utility>

namespace mh::program {

namespace {

using at::Tensor;

/// Words of 32 bits, each an int32 tensor of the same bits.
using Int32Words = std::array<Tensor, 4>;

int32_t same_bits(uint64_t word) {
  return static_cast<int32_t>(static_cast<uint32_t>(word));
}

/// The upper 16 bits.
Tensor upper(const Tensor& x) {
  return x.bitwise_right_shift(16).bitwise_and(0xffff);
}

/// High and low word of x * by, from products of halves; sums and products wrap.
std::pair<Tensor, Tensor> product(const Tensor& x, uint32_t by) {
  const auto low = static_cast<int32_t>(by & 0xffff), high = static_cast<int32_t>(by >> 16);
  const Tensor x_low = x.bitwise_and(0xffff), x_high = upper(x);
  const Tensor low_high = x_low * high, high_low = x_high * low;
  const Tensor carried =
      upper(x_low * low) + low_high.bitwise_and(0xffff) + high_low.bitwise_and(0xffff);
  return {x_high * high + upper(low_high) + upper(high_low) + upper(carried), x * same_bits(by)};
}

/// `mh::philox` of a key and counters, the lowest word first.
Int32Words philox(const Tensor& key_low, const Tensor& key_high, const Int32Words& counters) {
  auto [a, b, c, d] = counters;
  uint32_t low_step = 0, high_step = 0;
  for (int round = 0; round < 10; ++round) {
    const auto [high0, low0] = product(a, 0xD2511F53);
    const auto [high1, low1] = product(c, 0xCD9E8D57);
    a = high1.bitwise_xor(b).bitwise_xor(key_low + same_bits(low_step));
    b = low1;
    c = high0.bitwise_xor(d).bitwise_xor(key_high + same_bits(high_step));
    d = low0;
    low_step += 0x9E3779B9;
    high_step += 0xBB67AE85;
  }
  return {a, b, c, d};
}

} // namespace

uint64_t dropout_bits(uint64_t seed) {
  return seed * 0x9e3779b97f4a7c15ULL;
}

Tensor dropout_form(
    const Tensor& x,
    double p,
    int64_t key,
    const Tensor& samples,
    const Tensor& tokens,
    int64_t first_feature,
    const DropoutNumbers& numbers
) {
  const auto bits = static_cast<uint64_t>(key);
  const int64_t features = x.size(2), skipped = first_feature % 4;
  const int64_t fours = (skipped + features + 3) / 4; // four features have one counter
  const auto integers = tokens.options().dtype(at::kInt);
  const Tensor four = at::arange(fours, integers).add(first_feature / 4).view({1, 1, fours});
  const Tensor sample = samples.to(at::kInt).add(numbers.sample).view({1, -1, 1});
  const Tensor zeros = at::zeros_like(four.add(sample).add(tokens.to(at::kInt).view({-1, 1, 1})));
  const Int32Words words = philox(
      numbers.key_low.bitwise_xor(same_bits(bits)),
      numbers.key_high.bitwise_xor(same_bits(bits >> 32)),
      {zeros.add(four), zeros.add(tokens.to(at::kInt).view({-1, 1, 1})), zeros.add(sample), zeros}
  );
  const Tensor word = at::stack({words[0], words[1], words[2], words[3]}, -1)
                          .view({x.size(0), x.size(1), fours * 4})
                          .narrow(2, skipped, features);
  // Words are compared without a sign: both sides with the highest bit turned over.
  constexpr uint32_t kHighest = 0x80000000;
  const auto threshold = static_cast<uint32_t>(p * 0x1p32);
  const Tensor kept = word.bitwise_xor(same_bits(kHighest)).ge(same_bits(threshold ^ kHighest));
  const auto type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor scaled =
      (x.to(type) * static_cast<double>(static_cast<float>(1.0 / (1.0 - p)))).to(x.scalar_type());
  return at::where(kept, scaled, at::zeros_like(scaled));
}

} // namespace mh::program
