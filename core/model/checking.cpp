#include "megahost/checking.hpp"

#include "megahost/error.hpp"
#include "megahost/saved.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace mh {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// How far sums may differ that were added up in another order, relative to their size.
double tolerance(at::ScalarType type) {
  return type == at::kDouble ? 1e-9 : type == at::kFloat ? 1e-3 : 5e-2;
}

/// Whether the members of a group hold the same tensor: a weighted sum that tells positions apart,
/// compared by its largest and smallest value.
///
/// Ranks:   collective over the group
bool same_on_all(const at::Tensor& x, const Group& group) {
  if (x.is_meta()) {
    return true;
  }
  const at::Tensor flat = x.detach().reshape({-1}).to(at::kDouble);
  const at::Tensor weights =
      (at::arange(flat.numel(), flat.options()) * 0.6180339887498949).sin_().add_(1.5);
  const at::Tensor sum = flat.dot(weights);
  const at::Tensor size = flat.abs().dot(weights);
  const at::Tensor found = at::stack({sum, -sum, size});
  group.all_reduce(found, Reduce::max);
  const double top = found[0].item<double>(), bottom = -found[1].item<double>();
  // A NaN passes here: the checks of numbers report it.
  return !(top - bottom > tolerance(x.scalar_type()) * found[2].item<double>());
}

[[noreturn]] void differs(
    std::string_view layer, std::string_view tensor, const char* what, MeshAxis axis, Along along
) {
  throw Error(
      std::string(layer) + ": the " + what + " of its " + std::string(tensor) +
          " differs between the ranks of " + std::string(to_string(axis)) +
          ", where it should be " +
          (along.type == PlacementType::replicated ? "the same (replicated)"
                                                   : "the same (identical)"),
      "a collective before it is missing or one too many: look at what was added to the layers "
      "before (value) or behind (gradient) it",
      exit_code::numbers
  );
}

/// The axes on which `x` should be the same: for gradients, those on which it is identical.
void compare(
    const at::Tensor& x,
    const Placement& placed,
    const Mesh& mesh,
    bool gradient,
    std::string_view layer,
    std::string_view tensor
) {
  for (const auto axis : kAllMeshAxes) {
    const bool same = placed[axis].type == PlacementType::identical ||
                      (!gradient && placed[axis].type == PlacementType::replicated);
    // Samples and stages are told apart by dp and pp; experts' axes are other names for the ranks
    // of tp, cp and dp.
    const bool dense = axis == MeshAxis::tp || axis == MeshAxis::cp || axis == MeshAxis::dp;
    if (dense && same && mesh.size(axis) > 1 && !same_on_all(x, mesh.group(axis))) {
      differs(layer, tensor, gradient ? "gradient" : "value", axis, placed[axis]);
    }
  }
}

struct Checked : torch::autograd::Function<Checked> {
  struct Saved {
    Placement placed;
    const Mesh* mesh;
    std::string layer, tensor;
  };

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const Saved& expected) {
    save(ctx, expected);
    return x.view_as(x);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto& [placed, mesh, layer, tensor] = get_saved<Saved>(ctx);
    compare(gradients[0], placed, *mesh, /*gradient=*/true, layer, tensor);
    return {gradients[0], at::Tensor()};
  }
};

} // namespace

at::Tensor checked(
    const at::Tensor& x,
    const Placement& placed,
    std::string_view layer,
    std::string_view tensor,
    const StepContext& context
) {
  if (!context.mode().checking) {
    return x;
  }
  const auto& mesh = context.mesh();
  compare(x, placed, mesh, /*gradient=*/false, layer, tensor);
  if (!x.requires_grad() || !at::GradMode::is_enabled()) {
    return x;
  }
  return Checked::apply(x, Checked::Saved{placed, &mesh, std::string(layer), std::string(tensor)});
}

void check_parameters(const ParameterStore& parameters, const Mesh& mesh) {
  for (const auto& parameter : parameters.all()) {
    for (const auto& piece : parameter.pieces) {
      for (const auto& [axis, inner] : piece.same) {
        const auto& group = mesh.group(axis, inner);
        for (const auto& [tensor, what] :
             {std::pair{parameter.value, "value"}, {parameter.main_grad, "gradient"}}) {
          if (tensor.defined() && !same_on_all(parameter.view(tensor, piece), group)) {
            differs(piece.name, "slice", what, axis, {});
          }
        }
      }
    }
  }
}

} // namespace mh
