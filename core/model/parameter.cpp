#include "megahost/parameter.hpp"

#include "core/model/gradient_sums.hpp"
#include "megahost/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <map>
#include <memory>
#include <utility>

namespace mh {

at::Tensor Parameter::view(const at::Tensor& tensor, const Piece& piece) const {
  at::Tensor part = tensor.narrow(0, piece.row, piece.shape[0]);
  for (size_t d = 1; d < piece.shape.size(); ++d) {
    part = part.narrow(
        static_cast<int64_t>(d), piece.inside.empty() ? 0 : piece.inside[d - 1], piece.shape[d]
    );
  }
  return part;
}

void Parameter::add_gradient(const std::function<void(const at::Tensor&)>& add) {
  if (!value.requires_grad()) {
    return;
  }
  if (listener != nullptr) {
    listener->before(*this);
  }
  MH_ASSERT(main_grad.defined(), "backward before ParameterStore::allocate_gradients");
  add(main_grad);
  if (listener != nullptr) {
    listener->added(*this);
  }
}

Parameter& ParameterStore::add(Parameter parameter) {
  for (const auto& piece : parameter.pieces) {
    if (find(piece.name) != nullptr) {
      throw InternalError("two parameters are named `" + piece.name + "`");
    }
  }
  return parameters_.emplace_back(std::move(parameter));
}

Parameter* ParameterStore::find(std::string_view piece) {
  for (auto& parameter : parameters_) {
    for (const auto& candidate : parameter.pieces) {
      if (candidate.name == piece) {
        return &parameter;
      }
    }
  }
  return nullptr;
}

void ParameterStore::add_buffer(const std::string& name, at::Tensor value) {
  Piece piece;
  piece.name = name;
  piece.global_shape = piece.shape = value.sizes().vec();
  piece.offset.assign(piece.shape.size(), 0);
  buffers_.push_back({std::move(piece), std::move(value)});
}

int64_t ParameterStore::global_elements() const {
  int64_t total = 0;
  for (const auto& parameter : parameters_) {
    for (const auto& piece : parameter.pieces) {
      total += c10::multiply_integers(piece.global_shape);
    }
  }
  return total;
}

void ParameterStore::allocate_gradients() {
  MH_ASSERT(!gradients_.defined(), "gradients are allocated once");
  int64_t total = 0;
  for (const auto& parameter : parameters_) {
    total += parameter.value.requires_grad() ? parameter.value.numel() : 0;
  }
  if (parameters_.empty()) {
    return;
  }
  const auto& first = parameters_.front().value;
  const auto dtype = first.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  gradients_ = at::zeros({total}, first.options().dtype(dtype).requires_grad(false));
  int64_t begin = 0;
  for (auto& parameter : parameters_) {
    if (parameter.value.requires_grad()) { // else it is frozen
      place_gradient(parameter, gradients_, begin);
      begin += parameter.value.numel();
    }
  }
}

void ParameterStore::place_gradient(Parameter& parameter, const at::Tensor& flat, int64_t begin) {
  parameter.main_grad = at::Tensor();
  if (flat.defined()) {
    const auto& value = parameter.value;
    parameter.main_grad = flat.narrow(0, begin, value.numel()).view(value.sizes());
    if (value.scalar_type() != flat.scalar_type()) {
      value.set_grad_dtype(flat.scalar_type());
    }
  }
  parameter.value.mutable_grad() = parameter.main_grad;
}

namespace {

/// After autograd has accumulated into a leaf. Layers that add gradients themselves give autograd
/// none, so each use of a parameter is told once.
class Accumulated : public torch::autograd::PostAccumulateGradHook {
public:
  explicit Accumulated(Parameter& parameter)
      : parameter_(parameter) {}

  void operator()(const at::Tensor& leaf) override {
    if (parameter_.main_grad.defined() && leaf.grad().is_same(parameter_.main_grad)) {
      parameter_.listener->added(parameter_);
      return;
    }
    const at::Tensor made = leaf.grad(); // no buffer was there
    parameter_.add_gradient([&](const at::Tensor& main_grad) { main_grad.add_(made); });
    if (leaf.grad().is_same(made)) {
      leaf.mutable_grad() = parameter_.main_grad;
    }
  }

private:
  Parameter& parameter_;
};

} // namespace

ParameterListener::~ParameterListener() = default;

void ParameterStore::listen(ParameterListener* listener) {
  for (auto& parameter : parameters_) {
    parameter.listener = listener;
    torch::autograd::impl::set_post_acc_grad_hooks(
        parameter.value, listener == nullptr ? nullptr : std::make_unique<Accumulated>(parameter)
    );
  }
}

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

void ParameterStore::reduce_gradients(const Mesh& mesh) {
  for (auto& parameter : parameters_) {
    for (const auto& piece : parameter.pieces) {
      if (piece.frozen) {
        continue;
      }
      for (const auto& sum : piece.sums) {
        sum_gradient(parameter, piece, mesh.group(sum.axis, sum.inner));
      }
    }
  }
  sum_over_stages(*this, mesh);
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

at::Tensor ParameterStore::squared_gradient_norm(const Mesh& mesh) const {
  MH_ASSERT(gradients_.defined(), "there are no gradients yet");
  at::Tensor total = at::zeros({}, gradients_.options());
  for (const auto& parameter : parameters_) {
    for (const auto& piece : parameter.pieces) {
      if (!piece.frozen) {
        const at::Tensor norm = parameter.view(parameter.main_grad, piece).norm();
        total.add_(norm * norm, 1.0 / static_cast<double>(piece.copies));
      }
    }
  }
  mesh.all().all_reduce(total);
  return total;
}

} // namespace mh
