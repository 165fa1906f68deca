#include "core/mesh/start_convert.hpp"
#include "megahost/error.hpp"
#include "megahost/placement.hpp"
#include "megahost/saved.hpp"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>

namespace mh {

namespace {

/// Inner axes first, so that two axes may cut one dimension: cp's chunk outside, tp's inside.
constexpr std::array kInnerFirst = {
    MeshAxis::tp,
    MeshAxis::etp,
    MeshAxis::cp,
    MeshAxis::ep,
    MeshAxis::edp,
    MeshAxis::dp,
    MeshAxis::pp};

/// The order in which axes are converted: pieces are put together from the inside, and cut from the
/// outside.
std::array<MeshAxis, kMeshAxes> order_of(const Placement& from, const Placement& to) {
  const auto cuts = [&](MeshAxis axis) {
    return from[axis].type != PlacementType::split && to[axis].type == PlacementType::split;
  };
  std::array<MeshAxis, kMeshAxes> order{};
  auto next = std::remove_copy_if(kInnerFirst.begin(), kInnerFirst.end(), order.begin(), cuts);
  std::copy_if(kInnerFirst.rbegin(), kInnerFirst.rend(), next, cuts);
  return order;
}

[[noreturn]] void refuse(MeshAxis axis, const Placement& from, const Placement& to) {
  throw InternalError(
      "no conversion on mesh axis " + std::string(to_string(axis)) + " from (" + to_string(from) +
      ") to (" + to_string(to) + ")"
  );
}

/// `mine`: the sum may be taken in place.
Pending start_sum(const at::Tensor& tensor, bool mine, const Group& group) {
  return group.start_all_reduce(
      mine && tensor.is_contiguous() ? tensor : tensor.clone(at::MemoryFormat::Contiguous)
  );
}

/// This rank's slice put back into zeros of the whole: the gradient of a slice of replicated
/// values.
at::Tensor zero_padded(const at::Tensor& gradient, int64_t dim, const Group& group) {
  auto sizes = gradient.sizes().vec();
  sizes[dim] *= group.size();
  at::Tensor whole = at::zeros(sizes, gradient.options());
  group.slice(whole, dim).copy_(gradient);
  return whole;
}

Pending forward_along(
    MeshAxis axis,
    const at::Tensor& x,
    bool mine,
    const Placement& from,
    const Placement& to,
    const Group& group
) {
  const Along a = from[axis];
  const Along b = to[axis];
  if (a.type == PlacementType::identical && b.type == PlacementType::replicated) {
    return Pending(x);
  }
  if (a.type == PlacementType::split && b.type == PlacementType::split) {
    return Pending(group.all_to_all(x, b.dim, a.dim));
  }
  if (a.type == PlacementType::split && b.type != PlacementType::partial) {
    return group.start_all_gather(x, a.dim);
  }
  if (b.type == PlacementType::split &&
      (a.type == PlacementType::identical || a.type == PlacementType::replicated)) {
    return Pending(group.slice(x, b.dim));
  }
  if (a.type == PlacementType::partial && b.type == PlacementType::split) {
    return group.start_reduce_scatter(x, b.dim);
  }
  if (a.type == PlacementType::partial &&
      (b.type == PlacementType::identical || b.type == PlacementType::replicated)) {
    return start_sum(x, mine, group);
  }
  refuse(axis, from, to);
}

Pending backward_along(
    MeshAxis axis,
    const at::Tensor& dy,
    bool mine,
    const Placement& from,
    const Placement& to,
    const Group& group
) {
  const Along a = from[axis];
  const Along b = to[axis];
  if (b.type == PlacementType::replicated &&
      (a.type == PlacementType::identical || a.type == PlacementType::partial)) {
    return start_sum(dy, mine, group);
  }
  if (a.type == PlacementType::split && b.type == PlacementType::replicated) {
    return group.start_reduce_scatter(dy, a.dim);
  }
  if (a.type == PlacementType::split && b.type == PlacementType::identical) {
    return Pending(group.slice(dy, a.dim));
  }
  if (b.type == PlacementType::split &&
      (a.type == PlacementType::identical || a.type == PlacementType::partial)) {
    return group.start_all_gather(dy, b.dim);
  }
  if (a.type == PlacementType::partial && b.type == PlacementType::identical) {
    return Pending(dy);
  }
  if (a.type == PlacementType::replicated && b.type == PlacementType::split) {
    return Pending(zero_padded(dy, b.dim, group));
  }
  if (a.type == PlacementType::split && b.type == PlacementType::split) {
    return Pending(group.all_to_all(dy, a.dim, b.dim));
  }
  refuse(axis, from, to);
}

/// Along one axis after the other; the last collective goes on.
template <class Axes, class Step>
Pending along_all(
    const at::Tensor& tensor,
    bool mine,
    const Placement& from,
    const Placement& to,
    const Mesh& mesh,
    const Axes& axes,
    const Step& step
) {
  Pending pending(tensor);
  for (const auto axis : axes) {
    if (from[axis] == to[axis] || mesh.size(axis) == 1) {
      continue;
    }
    const at::Tensor x = pending.wait();
    pending = step(axis, x, mine || !x.is_alias_of(tensor), from, to, mesh.group(axis));
  }
  return pending;
}

struct Convert : torch::autograd::Function<Convert> {
  struct Saved {
    Placement from, to;
    const Mesh* mesh;
  };

  static at::Tensor forward(
      torch::autograd::AutogradContext* ctx,
      const at::Tensor& x,
      const Placement& from,
      const Placement& to,
      const Mesh& mesh
  ) {
    save(ctx, Saved{from, to, &mesh});
    at::Tensor y = convert_forward(x, from, to, mesh);
    return y.is_same(x) ? x.view_as(x) : y;
  }

  static torch::autograd::variable_list
  backward(torch::autograd::AutogradContext* ctx, torch::autograd::variable_list gradients) {
    const auto& [from, to, mesh] = get_saved<Saved>(ctx);
    return {convert_backward(gradients[0], from, to, *mesh), {}, {}, {}};
  }
};

} // namespace

Pending start_convert_forward(
    const at::Tensor& tensor,
    const Placement& from,
    const Placement& to,
    const Mesh& mesh,
    bool mine
) {
  return along_all(tensor, mine, from, to, mesh, order_of(from, to), forward_along);
}

Pending start_convert_backward(
    const at::Tensor& gradient,
    const Placement& from,
    const Placement& to,
    const Mesh& mesh,
    bool mine
) {
  auto order = order_of(from, to);
  std::reverse(order.begin(), order.end());
  return along_all(gradient, mine, from, to, mesh, order, backward_along);
}

at::Tensor convert_forward(
    const at::Tensor& tensor, const Placement& from, const Placement& to, const Mesh& mesh
) {
  return start_convert_forward(tensor, from, to, mesh).wait();
}

at::Tensor convert_backward(
    const at::Tensor& gradient, const Placement& from, const Placement& to, const Mesh& mesh
) {
  return start_convert_backward(gradient, from, to, mesh).wait();
}

at::Tensor
convert(const at::Tensor& tensor, const Placement& from, const Placement& to, const Mesh& mesh) {
  bool same = true;
  for (const auto axis : kAllMeshAxes) {
    same = same && (mesh.size(axis) == 1 || from[axis] == to[axis]);
  }
  return same ? tensor : Convert::apply(tensor, from, to, mesh);
}

} // namespace mh
