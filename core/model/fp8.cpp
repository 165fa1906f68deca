#include "core/model/fp8.hpp"

#include "core/kernels/fp8_ops.hpp"
#include "megahost/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

namespace mh {

namespace {

constexpr int64_t kOperands = 3;

bool is_e5m2(Fp8Operand operand) {
  return operand == Fp8Operand::gradient;
}

} // namespace

at::Tensor
fp8_scale(const at::Tensor& amax, const at::Tensor& former, double largest, int64_t margin) {
  if (amax.is_meta()) {
    return at::empty_like(amax); // LibTorch has no shape function for `where`
  }
  const at::Tensor most = at::full_like(amax, std::ldexp(largest, -static_cast<int>(margin)));
  const at::Tensor scale =
      (most / amax).clamp_max(std::numeric_limits<float>::max()); // tiny values
  const at::Tensor known = amax.gt(0).bitwise_and(amax.lt(std::numeric_limits<float>::infinity()));
  return at::where(known, scale, former);
}

int64_t Fp8State::add(const std::string& name) {
  MH_ASSERT(!state_.defined(), "GEMMs are added before scales are allocated");
  names_.push_back(name);
  return static_cast<int64_t>(names_.size()) - 1;
}

void Fp8State::allocate(ParameterStore& store, at::Device device) {
  const auto products = static_cast<int64_t>(names_.size());
  const int64_t history = spec_.delayed ? spec_.history : 0;
  state_ = at::zeros(
      {products, kOperands, 1 + history}, at::TensorOptions().dtype(at::kFloat).device(device)
  );
  scales_ = state_.select(2, 0);
  scales_.fill_(1);
  history_ = state_.narrow(2, 1, history);
  for (int64_t i = 0; spec_.delayed && i < products; ++i) {
    store.add_buffer("fp8." + names_[static_cast<size_t>(i)], state_.select(0, i));
  }
}

at::Tensor Fp8State::current_scale(
    const at::Tensor& x, double largest, const Placement& placement, const Mesh& mesh
) const {
  const at::Tensor amax = ops::fp8_largest(x);
  for (const auto axis : {MeshAxis::tp, MeshAxis::cp}) {
    if (placement[axis].type == PlacementType::split) {
      mesh.group(axis).all_reduce(amax, Reduce::max);
    }
  }
  return fp8_scale(amax, at::ones_like(amax), largest, spec_.margin);
}

Rounded Fp8State::round(
    int64_t product,
    Fp8Operand operand,
    const at::Tensor& x,
    bool remember,
    const Placement& placement,
    const Mesh& mesh
) {
  const at::NoGradGuard no_grad;
  const bool e5m2 = is_e5m2(operand);
  const auto column = static_cast<int64_t>(operand);
  at::Tensor scale;
  if (spec_.delayed) {
    scale = scales_.select(0, product).select(0, column);
    if (remember) {
      const at::Tensor now = history_.select(0, product).select(0, column).select(0, 0);
      now.copy_(at::maximum(now, ops::fp8_largest(x)));
    }
  } else {
    scale = current_scale(x, ops::fp8_max(e5m2), placement, mesh);
  }
  return {ops::fp8_round(x, scale, e5m2), scale.reciprocal()};
}

void Fp8State::update(const Mesh& mesh) {
  if (!spec_.delayed || names_.empty()) {
    return;
  }
  const at::NoGradGuard no_grad;
  const at::Tensor now = history_.select(2, 0).contiguous();
  for (const auto axis : {MeshAxis::tp, MeshAxis::cp, MeshAxis::dp}) {
    mesh.group(axis).all_reduce(now, Reduce::max);
  }
  history_.select(2, 0).copy_(now);
  const at::Tensor amax = spec_.most_recent ? now : history_.amax(2);
  for (int64_t operand = 0; operand < kOperands; ++operand) {
    const at::Tensor scale = scales_.select(1, operand);
    const double largest = ops::fp8_max(is_e5m2(static_cast<Fp8Operand>(operand)));
    scale.copy_(fp8_scale(amax.select(1, operand), scale, largest, spec_.margin));
  }
  // This step's becomes the newest, the last entry.
  history_.copy_(at::cat({history_.narrow(2, 1, history_.size(2) - 1), history_.narrow(2, 0, 1)}, 2)
  );
  history_.select(2, 0).zero_();
}

void Fp8State::forget() {
  if (spec_.delayed && state_.defined()) {
    history_.select(2, 0).zero_();
  }
}

} // namespace mh
