#include "megahost/parameter.hpp"

#include "megahost/error.hpp"

#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

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
  MH_ASSERT(main_grad.defined(), "a backward pass before there are Gradients");
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

} // namespace mh
