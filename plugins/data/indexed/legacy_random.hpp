#pragma once
/// Random numbers and sums of NumPy and PyTorch, bit for bit: what Megatron's order is made of.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace mh::indexed {

/// numpy.random.RandomState(seed).
///
/// Source:  numpy/random/src/legacy/legacy-distributions.c, mt19937.c, mtrand.pyx
class RandomState {
public:
  explicit RandomState(uint32_t seed)
      : generator_(seed) {}

  /// Fisher and Yates, from the end; draws are masked and rejected.
  template <class T>
  void shuffle(std::span<T> values) {
    for (uint64_t i = values.size(); i-- > 1;) {
      std::swap(values[i], values[up_to(i)]);
    }
  }

  /// random(): in [0, 1).
  double uniform() {
    const uint64_t high = generator_() >> 5, low = generator_() >> 6;
    return (static_cast<double>(high) * 67108864.0 + static_cast<double>(low)) / 9007199254740992.0;
  }

  /// randint(0, end)
  uint64_t below(uint64_t end) { return end == 1 ? 0 : up_to(end - 1); }

  /// geometric(p) for p below 1/3.
  int64_t geometric(double p) {
    return static_cast<int64_t>(std::ceil(std::log1p(-uniform()) / std::log(1 - p)));
  }

  /// choice(shares.size(), p=shares), which sum to 1.
  size_t choice(std::span<const double> shares) {
    std::vector<double> sums(shares.size());
    std::partial_sum(shares.begin(), shares.end(), sums.begin());
    const double total = sums.back();
    for (double& sum : sums) {
      sum /= total;
    }
    return static_cast<size_t>(std::ranges::upper_bound(sums, uniform()) - sums.begin());
  }

private:
  /// 0 to `max`, included.
  uint64_t up_to(uint64_t max) {
    const uint64_t mask = ~uint64_t{0} >> std::countl_zero(max);
    uint64_t drawn = 0;
    do {
      drawn = generator_();
      if (max > UINT32_MAX) {
        drawn = drawn << 32 | generator_();
      }
      drawn &= mask;
    } while (drawn > max);
    return drawn;
  }

  std::mt19937 generator_;
};

/// torch.randperm(size, generator=torch.Generator().manual_seed(seed)) on a CPU.
///
/// Units:   size below 2^32
/// Source:  aten/src/ATen/native/TensorFactories.cpp, randperm_cpu
[[nodiscard]] inline std::vector<uint32_t> torch_randperm(uint32_t size, uint64_t seed) {
  std::mt19937 generator(static_cast<uint32_t>(seed));
  std::vector<uint32_t> order(size);
  std::iota(order.begin(), order.end(), 0U);
  for (uint32_t i = 0; i + 1 < size; ++i) {
    std::swap(order[i], order[i + static_cast<uint32_t>(generator()) % (size - i)]);
  }
  return order;
}

/// numpy.sum of doubles: eight sums side by side in blocks of at most 128.
///
/// Source:  numpy/_core/src/umath/loops_utils.h.src, DOUBLE_pairwise_sum
[[nodiscard]] inline double numpy_sum(std::span<const double> values) {
  constexpr size_t kLanes = 8, kBlock = 128;
  const size_t size = values.size();
  if (size < kLanes) {
    return std::accumulate(values.begin(), values.end(), 0.0);
  }
  if (size > kBlock) {
    const size_t half = size / 2 - size / 2 % kLanes;
    return numpy_sum(values.first(half)) + numpy_sum(values.subspan(half));
  }
  double lanes[kLanes];
  std::copy_n(values.begin(), kLanes, lanes);
  size_t at = kLanes;
  for (; at < size - size % kLanes; at += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] += values[at + lane];
    }
  }
  const double sum = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
                     ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
  return std::accumulate(values.begin() + static_cast<ptrdiff_t>(at), values.end(), sum);
}

/// Megatron's `normalize`: weights divided by their sum.
[[nodiscard]] inline std::vector<double> normalized(std::vector<double> weights) {
  const double sum = numpy_sum(weights);
  for (double& weight : weights) {
    weight /= sum;
  }
  return weights;
}

} // namespace mh::indexed
