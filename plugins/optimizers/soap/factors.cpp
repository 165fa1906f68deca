#include "factors.hpp"

#include <megahost/random.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <cstddef>

namespace mh::soap {

namespace {

std::vector<int64_t> shape_of(const mh::UpdateItem& item) {
  return item.global_shape.empty() ? item.weight.sizes().vec() : item.global_shape;
}

/// A matrix's state lies on one of the ranks that split it.
bool is_here(const mh::UpdateItem& item) {
  return item.state.front().numel() > 0;
}

} // namespace

FactorOptimizer::FactorOptimizer(const FactorConfig& config, const Args& args)
    : config_(config)
    , args_(args)
    , adamw_{
          .kind = mh::UpdateRule::Kind::adam,
          .stochastic_rounding = args.stochastic_rounding,
          .beta1 = config.betas[0],
          .beta2 = config.betas[1],
          .eps = config.eps}
    , descent_{
          .kind = mh::UpdateRule::Kind::sgd, .stochastic_rounding = args.stochastic_rounding} {}

std::vector<mh::StateSpec> FactorOptimizer::state() const {
  return {{"exp_avg", args_.state_dtype}, {"exp_avg_sq", args_.state_dtype}};
}

std::vector<int64_t>
FactorOptimizer::factored(const std::string& name, const std::vector<int64_t>& shape) const {
  std::vector<int64_t> dims;
  if (mh::is_matrix(name, shape.size(), config_.adamw)) {
    for (const int64_t dim : {0, 1}) {
      if (shape[static_cast<size_t>(dim)] <= config_.max_preconditioner_dim) {
        dims.push_back(dim);
      }
    }
  }
  return dims;
}

std::vector<mh::StateSpec>
FactorOptimizer::state_of(const std::string& name, const std::vector<int64_t>& global_shape) const {
  const auto dims = factored(name, global_shape);
  if (dims.empty()) {
    return state();
  }
  std::vector<mh::StateSpec> all;
  const auto add = [&](const std::string& state, const std::vector<int64_t>& shape) {
    all.push_back({state, at::kFloat, shape, /*on_one_rank=*/true});
  };
  add("exp_avg", global_shape);
  add("exp_avg_sq", global_shape);
  for (const int64_t dim : dims) {
    const int64_t length = global_shape[static_cast<size_t>(dim)];
    const std::string side = dim == 0 ? "left" : "right";
    add(side, {length, length});
    add(side + "_" + preconditioner(), {length, length});
  }
  return all;
}

at::Tensor FactorOptimizer::damped(const Factor& factor) const {
  at::Tensor sum = factor.average.clone();
  sum.diagonal().add_(factor.average.diagonal().mean() * config_.damping);
  return sum;
}

void FactorOptimizer::average_products(Matrix& matrix) const {
  const double kept = config_.shampoo_beta;
  for (Factor& factor : matrix.factors) {
    const at::Tensor g = factor.dim == 0 ? matrix.gradient : matrix.gradient.t();
    factor.average.addmm_(g, g.t(), kept, 1 - kept);
  }
}

/// Matrices are refreshed in different steps, by their names, so that steps take about as long.
Matrix FactorOptimizer::matrix_of(
    const mh::UpdateItem& item, const at::Tensor& gradient, int64_t step
) const {
  const auto period = static_cast<uint64_t>(config_.precondition_frequency);
  const uint64_t turn = mh::random_key(0, item.name) % period;
  Matrix matrix{
      .gradient = gradient,
      .exp_avg = item.state[0],
      .exp_avg_sq = item.state[1],
      .factors = {},
      .step = step,
      .due = (static_cast<uint64_t>(step - 1) + turn) % period == 0};
  size_t next = 2;
  for (const int64_t dim : factored(item.name, shape_of(item))) {
    matrix.factors.push_back({dim, item.state[next], item.state[next + 1]});
    next += 2;
  }
  return matrix;
}

void FactorOptimizer::update(std::span<mh::UpdateItem> items, const mh::Update& update) const {
  std::vector<mh::UpdateItem> matrices, rest;
  for (const auto& item : items) {
    (factored(item.name, shape_of(item)).empty() ? rest : matrices).push_back(item);
  }
  mh::update_fused(adamw_, rest, update);
  const double scale = update.gradient_scale;
  const auto step = static_cast<int64_t>(update.step.number());
  std::vector<at::Tensor> steps(matrices.size()); // whole gradients first; undefined: another's
  for (size_t i = 0; i < matrices.size(); ++i) {
    const auto& item = matrices[i];
    const at::Tensor whole = item.gather ? item.gather(item.gradient) : item.gradient;
    if (is_here(item)) {
      steps[i] = whole * scale;
    }
  }
  for (size_t i = 0; i < matrices.size(); ++i) {
    if (steps[i].defined()) {
      Matrix matrix = matrix_of(matrices[i], steps[i], step);
      steps[i] = step_of(matrix);
    }
  }
  for (size_t i = 0; i < matrices.size(); ++i) {
    auto& item = matrices[i];
    if (!steps[i].defined()) {
      steps[i] = at::zeros(shape_of(item), item.gradient.options());
    }
    const at::Tensor whole = item.sum ? item.sum(steps[i]) : steps[i];
    steps[i].reset();
    if (item.weight.numel() > 0) { // else the slice of a vocabulary that ends before this rank
      item.gradient.copy_(mh::slice_of(item, whole));
    }
  }
  auto last = update;
  last.gradient_scale = 1; // the steps have it
  mh::update_fused(descent_, matrices, last);
}

} // namespace mh::soap
