#include "core/model/conserved.hpp"

#include "megahost/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>

#include <cmath>
#include <limits>
#include <string>

namespace mh {

namespace {

/// The sum of all members' numbers. Largest values are exchanged, each in its own place, as in all
/// comparisons of the checking mode.
at::Tensor summed(const at::Tensor& own, const Group& group) {
  std::vector<int64_t> sizes{group.size()};
  sizes.insert(sizes.end(), own.sizes().begin(), own.sizes().end());
  const at::Tensor all = at::full(sizes, -std::numeric_limits<double>::infinity(), own.options());
  all[group.index()].copy_(own);
  group.all_reduce(all, Reduce::max);
  return all.sum(0);
}

/// How far amounts may differ by rounding: each element's is random, equal ones have equal ones.
bool differ(const at::Tensor& before, const at::Tensor& after, at::ScalarType type) {
  const double unit = type == at::kDouble ? 1e-16 : type == at::kFloat ? 6e-8 : 4e-3;
  const auto a = before.accessor<double, 1>(), b = after.accessor<double, 1>();
  const double allowed = 256 * unit * std::sqrt(a[1] + b[1]) + 2 * unit * (a[2] + b[2]);
  return std::abs(a[0] - b[0]) > allowed; // a NaN passes here: the checks of numbers report it
}

bool is_dense(MeshAxis axis) {
  return axis == MeshAxis::tp || axis == MeshAxis::cp || axis == MeshAxis::dp;
}

/// Whether each rank of an axis has a part of the amount, rather than all of it.
bool in_parts(PlacementType type, bool gradient) {
  return type == PlacementType::split ||
         type == (gradient ? PlacementType::replicated : PlacementType::partial);
}

} // namespace

at::Tensor amounts_of(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> rows;
  for (const auto& tensor : tensors) {
    const at::Tensor x = tensor.detach().to(at::kDouble);
    rows.push_back(at::stack({x.sum(), x.square().sum(), x.abs().sum()}));
  }
  return at::stack(rows).cpu();
}

int64_t first_lost(
    const at::Tensor& before, const at::Tensor& after, const Group& group, at::ScalarType type
) {
  const at::Tensor all = summed(at::cat({before, after}, 1), group);
  for (int64_t i = 0; i < all.size(0); ++i) {
    if (differ(all[i].narrow(0, 0, 3), all[i].narrow(0, 3, 3), type)) {
      return i;
    }
  }
  return -1;
}

void check_conversion(
    const at::Tensor& before,
    const at::Tensor& after,
    const Placement& from,
    const Placement& to,
    const Mesh& mesh,
    bool gradient,
    std::string_view layer,
    std::string_view tensor
) {
  if (before.is_meta()) {
    return;
  }
  at::Tensor one = amounts_of({before}), other = amounts_of({after});
  std::string changed;
  for (const auto axis : kAllMeshAxes) {
    const auto& group = mesh.group(axis);
    if (group.size() == 1 || from[axis] == to[axis] || !is_dense(axis)) {
      continue;
    }
    changed += (changed.empty() ? "" : " and ") + std::string(to_string(axis));
    const auto amount = [&](const at::Tensor& own, PlacementType type) {
      return summed(
          in_parts(type, gradient) ? own : own / static_cast<double>(group.size()), group
      );
    };
    one = amount(one, from[axis].type);
    other = amount(other, to[axis].type);
  }
  if (!changed.empty() && differ(one[0], other[0], before.scalar_type())) {
    throw Error(
        std::string(layer) + ": the " + (gradient ? "gradient" : "value") + " of its " +
            std::string(tensor) + " lost or gained something on its way between the ranks of " +
            changed,
        "a collective inside this layer is missing or does not do its part",
        exit_code::numbers
    );
  }
}

} // namespace mh
