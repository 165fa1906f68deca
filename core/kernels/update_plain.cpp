#include "core/kernels/update_plain.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <utility>

namespace mh::ops {

namespace {

using at::Tensor;

/// The global index of each element of a slice.
Tensor global_indices(const UpdateItemView& item) {
  Tensor index = at::arange(item.weight.numel(), item.weight.options().dtype(at::kLong))
                     .view(item.weight.sizes());
  if (item.shape.empty()) {
    return index;
  }
  index.zero_();
  int64_t stride = 1;
  for (auto d = static_cast<int64_t>(item.shape.size()); d-- > 0;) {
    std::vector<int64_t> along(item.shape.size(), 1);
    const int64_t size = along[d] = item.weight.size(d);
    index.add_((at::arange(size, index.options()) + item.offset[d]).view(along), stride);
    stride *= item.shape[d];
  }
  return index;
}

// Numbers on the host are doubles here, those in memory are tensors.
double power(double base, double exponent) {
  return std::pow(base, exponent);
}

Tensor power(double base, const Tensor& exponent) {
  return at::pow(base, exponent);
}

double root(double x) {
  return std::sqrt(x);
}

Tensor root(const Tensor& x) {
  return x.sqrt();
}

/// Both halves of a whole number of 64 bits, as int64.
std::pair<int64_t, int64_t> halves(double whole) {
  const auto bits = static_cast<uint64_t>(whole);
  return {static_cast<int64_t>(bits & 0xffffffff), static_cast<int64_t>(bits >> 32)};
}

std::pair<Tensor, Tensor> halves(const Tensor& whole) {
  const Tensor bits = whole.to(at::kLong);
  return {bits.bitwise_and(0xffffffff), bits.bitwise_right_shift(32)};
}

/// `mh::philox` of the counters (index / 4, which) and step, word index % 4: 32 bits each, as
/// int64.
template <class Step>
Tensor random_words(uint64_t key, const Tensor& index, int64_t which, const Step& step) {
  constexpr int64_t kLow = 0xffffffff;
  const auto low = [](const Tensor& x) { return x.bitwise_and(kLow); };
  const auto high = [&](const Tensor& x) { return low(x.bitwise_right_shift(32)); };
  Tensor a = low(index.floor_divide(4));
  Tensor b = a.mul(0).add_(which);
  const auto [step_low, step_high] = halves(step);
  Tensor c = a.mul(0).add_(step_low);
  Tensor d = a.mul(0).add_(step_high);
  auto k0 = static_cast<uint32_t>(key);
  auto k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const Tensor p0 = a * int64_t{0xD2511F53}; // wraps: the bits are right
    const Tensor p1 = c * int64_t{0xCD9E8D57};
    a = high(p1).bitwise_xor(b).bitwise_xor(int64_t{k0});
    b = low(p1);
    c = high(p0).bitwise_xor(d).bitwise_xor(int64_t{k1});
    d = low(p0);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  const Tensor lane = index.remainder(4);
  return at::where(lane.eq(0), a, at::where(lane.eq(1), b, at::where(lane.eq(2), c, d)));
}

/// Rounds float32 to bf16, up with the probability that makes the mean right.
Tensor round_randomly(const Tensor& x, const Tensor& words, int64_t shift) {
  const Tensor bits = x.contiguous().view(at::kInt).to(at::kLong).bitwise_and(0xffffffff);
  const Tensor sum = bits + words.bitwise_right_shift(shift).bitwise_and(0xffff);
  const Tensor rounded = sum.bitwise_and(0xffff0000).to(at::kInt).view(at::kFloat);
  return at::where(x.abs().lt(INFINITY), rounded, x);
}

/// `N` is double or Tensor.
template <class N>
void update_by(
    const UpdateNumbers& n,
    const UpdateItemView& item,
    const N& scale,
    const N& step,
    const N& rate,
    const N& decay
) {
  const auto type = item.weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto wide = [type](const Tensor& x) { return x.to(type); };
  Tensor w = wide(item.weight);
  Tensor g = wide(item.gradient) * scale;
  if (!n.decoupled) {
    g = g + w * decay;
  } else {
    w = w * (1 - rate * decay);
  }
  Tensor m = item.first.defined() ? wide(item.first) : at::zeros_like(g);
  Tensor v = item.second.defined() ? wide(item.second) : Tensor();
  Tensor left = at::zeros_like(g); // the gradient afterwards
  if (n.kind == UpdateKind::adam) {
    m = m + (g - m) * (1 - n.beta1);
    v = v * n.beta2 + g * g * (1 - n.beta2);
    const Tensor size = v.sqrt() / root(1 - power(n.beta2, step)) + n.eps;
    w = w - m / size * (rate / (1 - power(n.beta1, step)));
  } else if (n.kind == UpdateKind::sgd) {
    m = m * n.beta1 + g;
    w = w - (n.nesterov ? g + m * n.beta1 : m) * rate;
  } else {
    m = m + (g - m) * (1 - n.beta1);
    left = n.nesterov ? g + (m - g) * n.beta1 : m;
  }
  const auto put = [&](const Tensor& to, const Tensor& x, int64_t which, int64_t shift) {
    if (n.stochastic && to.scalar_type() == at::kBFloat16) {
      to.copy_(round_randomly(x, random_words(item.key, global_indices(item), which, step), shift));
    } else {
      to.copy_(x);
    }
  };
  if (item.first.defined()) {
    put(item.first, m, 0, 0);
  }
  if (item.second.defined()) {
    put(item.second, v, 0, 16);
  }
  item.gradient.copy_(left);
  if (n.kind != UpdateKind::average) {
    put(item.weight, w, 1, 0);
    if (item.parameter.defined()) {
      item.parameter.copy_(w);
    }
  }
}

} // namespace

void update_plainly(const UpdateNumbers& n, const UpdateItemView& item) {
  if (n.scale.is_tensor() || n.step.is_tensor() || item.rate.is_tensor() ||
      item.decay.is_tensor()) {
    update_by<Tensor>(
        n, item, n.scale.tensor(), n.step.tensor(), item.rate.tensor(), item.decay.tensor()
    );
  } else {
    update_by<double>(n, item, n.scale, n.step, item.rate, item.decay);
  }
}

} // namespace mh::ops
