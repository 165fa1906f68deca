#include "core/step/gradient_sums.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace mh {

namespace {

/// Adds a tensor up over some members of a group. The first of them does, so all get the same bits.
void sum_over(const Group& group, const std::vector<int64_t>& members, const at::Tensor& tensor) {
  const int64_t first = members.front();
  if (group.index() != first) {
    Pending sent = group.send(tensor, first);
    (void)sent.wait();
    group.receive(tensor, first).wait();
    return;
  }
  std::vector<Pending> parts;
  for (size_t i = 1; i < members.size(); ++i) {
    parts.push_back(group.receive(at::empty_like(tensor), members[i]));
  }
  for (auto& part : parts) {
    tensor.add_(part.wait());
  }
  std::vector<Pending> sums;
  for (size_t i = 1; i < members.size(); ++i) {
    sums.push_back(group.send(tensor, members[i]));
  }
  for (auto& sum : sums) {
    (void)sum.wait();
  }
}

/// Calls `change` with a contiguous copy of a part of a tensor, or with itself.
template <class Change>
void contiguously(const at::Tensor& view, const Change& change) {
  const at::Tensor whole = view.contiguous();
  change(whole);
  if (!whole.is_same(view)) {
    view.copy_(whole);
  }
}

} // namespace

void sum_gradient(Parameter& parameter, const Piece& piece, const Group& group) {
  contiguously(parameter.view(parameter.main_grad, piece), [&](const at::Tensor& gradient) {
    group.all_reduce(gradient);
  });
}

void sum_over_stages(ParameterStore& store, const Mesh& mesh) {
  std::map<std::string, std::pair<Parameter*, const Piece*>> shared; // in one order on all stages
  for (auto& parameter : store.all()) {
    for (const auto& piece : parameter.pieces) {
      if (!piece.stages.empty()) {
        shared[piece.name] = {&parameter, &piece};
      }
    }
  }
  for (const auto& [name, found] : shared) {
    const auto& [parameter, piece] = found;
    contiguously(parameter->view(parameter->main_grad, *piece), [&](const at::Tensor& gradient) {
      sum_over(mesh.group(MeshAxis::pp), piece->stages, gradient);
    });
  }
}

} // namespace mh
