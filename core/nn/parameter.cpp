#include "megahost/parameter.hpp"

#include "megahost/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

namespace mh {

at::Tensor Parameter::view(const at::Tensor& tensor, const Piece& piece) const {
  at::Tensor part = tensor.narrow(0, piece.row, piece.shape[0]);
  for (size_t d = 1; d < piece.shape.size(); ++d) {
    part = part.narrow(static_cast<int64_t>(d), 0, piece.shape[d]);
  }
  return part;
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
    total += parameter.value.numel();
  }
  if (parameters_.empty()) {
    return;
  }
  const auto& first = parameters_.front().value;
  const auto dtype = first.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  gradients_ = at::zeros({total}, first.options().dtype(dtype).requires_grad(false));
  int64_t begin = 0;
  for (auto& parameter : parameters_) {
    const int64_t length = parameter.value.numel();
    parameter.main_grad = gradients_.narrow(0, begin, length).view(parameter.value.sizes());
    begin += length;
    if (parameter.value.scalar_type() != dtype) {
      parameter.value.set_grad_dtype(dtype);
    }
    parameter.value.mutable_grad() = parameter.main_grad;
  }
}

void ParameterStore::reduce_gradients(const Mesh& mesh) {
  for (auto& parameter : parameters_) {
    for (const auto& piece : parameter.pieces) {
      for (const auto& sum : piece.sums) {
        const auto& group = mesh.group(sum.axis, sum.inner);
        at::Tensor view = parameter.view(parameter.main_grad, piece);
        at::Tensor whole = view.contiguous();
        group.all_reduce(whole);
        if (!whole.is_same(view)) {
          view.copy_(whole);
        }
      }
    }
  }
}

at::Tensor ParameterStore::squared_gradient_norm(const Mesh& mesh) const {
  MH_ASSERT(gradients_.defined(), "there are no gradients yet");
  at::Tensor total = at::zeros({}, gradients_.options());
  for (const auto& parameter : parameters_) {
    for (const auto& piece : parameter.pieces) {
      const at::Tensor norm = parameter.view(parameter.main_grad, piece).norm();
      total.add_(norm * norm, 1.0 / static_cast<double>(piece.copies));
    }
  }
  mesh.all().all_reduce(total);
  return total;
}

} // namespace mh
