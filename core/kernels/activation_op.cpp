#include "core/kernels/registration.hpp"
#include "core/kernels/row_kernels.hpp"
#include "core/kernels/row_ops.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>

#include <string>
#include <vector>

namespace mh::ops {

namespace {

using at::Tensor;

Activate kind_of(const std::string& name) {
  if (name == "silu") {
    return Activate::silu;
  }
  TORCH_CHECK(name == "gelu" || name == "gelu_tanh", "there is no activation ", name);
  return name == "gelu" ? Activate::gelu : Activate::gelu_tanh;
}

std::vector<int64_t> activated_sizes(const Tensor& x, bool gated) {
  auto sizes = x.sizes().vec();
  if (gated) {
    TORCH_CHECK(
        x.dim() > 0 && x.size(-1) % 2 == 0,
        "a gated activation reads gate and up packed in a row, but the last dimension of ",
        x.sizes(),
        " is odd"
    );
    sizes.back() /= 2;
  }
  return sizes;
}

Tensor plain(const Tensor& x, Activate kind) {
  return kind == Activate::silu ? at::silu(x)
                                : at::gelu(x, kind == Activate::gelu ? "none" : "tanh");
}

Tensor plain_backward(const Tensor& dy, const Tensor& x, Activate kind) {
  return kind == Activate::silu
             ? at::silu_backward(dy, x)
             : at::gelu_backward(dy, x, kind == Activate::gelu ? "none" : "tanh");
}

Tensor activation_plain(const Tensor& x, const std::string& name, bool gated) {
  (void)activated_sizes(x, gated);
  const auto kind = kind_of(name);
  if (!gated) {
    return plain(x, kind);
  }
  const auto halves = x.chunk(2, -1);
  return plain(halves[0], kind).mul_(halves[1]);
}

Tensor
activation_backward_plain(const Tensor& dy, const Tensor& x, const std::string& name, bool gated) {
  const auto kind = kind_of(name);
  if (!gated) {
    return plain_backward(dy, x, kind);
  }
  const auto halves = x.chunk(2, -1);
  return at::cat(
      {plain_backward(dy * halves[1], halves[0], kind), plain(halves[0], kind).mul_(dy)}, -1
  );
}

/// Without our kernel both halves are written where they belong.
Tensor activation_backward_by_halves(
    const Tensor& dy, const Tensor& x, const std::string& name, bool gated
) {
  if (!gated || dy.scalar_type() != x.scalar_type()) {
    return activation_backward_plain(dy, x, name, gated);
  }
  const auto kind = kind_of(name);
  const auto halves = x.chunk(2, -1);
  Tensor dx = at::empty(x.sizes(), x.options());
  Tensor gate = dx.narrow(-1, 0, halves[0].size(-1));
  Tensor up = dx.narrow(-1, halves[0].size(-1), halves[1].size(-1));
  if (kind == Activate::silu) {
    at::silu_backward_out(gate, dy * halves[1], halves[0]);
  } else {
    const bool exact = kind == Activate::gelu;
    at::gelu_backward_out(gate, dy * halves[1], halves[0], exact ? "none" : "tanh");
  }
  at::mul_out(up, plain(halves[0], kind), dy);
  return dx;
}

/// Forward where `dy` is undefined.
cuda::ActivationLaunch
cuda_call(const Tensor& x, const Tensor& dy, const std::string& name, bool gated) {
  const int64_t width = x.size(-1) / (gated ? 2 : 1);
  return {
      .type = cuda_type(x),
      .kind = kind_of(name),
      .gated = gated,
      .rows = x.numel() / x.size(-1),
      .width = width,
      .x = x.const_data_ptr(),
      .dy = dy.defined() ? dy.const_data_ptr() : nullptr,
      .y = nullptr,
      .dx = nullptr};
}

Tensor activation_cuda(const Tensor& input, const std::string& name, bool gated) {
  const auto* kernels = cuda_row_kernels(input);
  if (kernels == nullptr) {
    return activation_plain(input, name, gated);
  }
  const Tensor y = at::empty(activated_sizes(input, gated), input.options());
  const Tensor x = input.contiguous();
  auto call = cuda_call(x, {}, name, gated);
  call.y = y.mutable_data_ptr();
  start_kernel(kernels->activation, call, x.device());
  return y;
}

Tensor activation_backward_cuda(
    const Tensor& gradient, const Tensor& input, const std::string& name, bool gated
) {
  const auto* kernels = cuda_row_kernels(input);
  if (kernels == nullptr || gradient.scalar_type() != input.scalar_type()) {
    return activation_backward_by_halves(gradient, input, name, gated);
  }
  const Tensor x = input.contiguous(), dy = gradient.contiguous();
  const Tensor dx = at::empty(x.sizes(), x.options());
  auto call = cuda_call(x, dy, name, gated);
  call.dx = dx.mutable_data_ptr();
  start_kernel(kernels->activation, call, x.device());
  return dx;
}

kernels::ActivationCall activation_call(const Tensor& x, const std::string& name, bool gated) {
  return {
      .width = x.size(-1) / (gated ? 2 : 1),
      .kind = kind_of(name),
      .gated = gated,
      .x = x.const_data_ptr(),
      .dy = nullptr,
      .y = nullptr,
      .dx = nullptr};
}

Tensor activation_cpu(const Tensor& input, const std::string& name, bool gated) {
  const auto* kernel = row_kernels(input);
  if (kernel == nullptr) {
    return activation_plain(input, name, gated);
  }
  const Tensor y = at::empty(activated_sizes(input, gated), input.options());
  const Tensor x = input.contiguous();
  auto call = activation_call(x, name, gated);
  call.y = y.mutable_data_ptr();
  over_rows(y.numel() / call.width, call.width, [&](int64_t begin, int64_t end) {
    kernel->activation_forward(call, begin, end);
  });
  return y;
}

Tensor activation_backward_cpu(
    const Tensor& gradient, const Tensor& input, const std::string& name, bool gated
) {
  const auto* kernel = row_kernels(input);
  if (kernel == nullptr || gradient.scalar_type() != input.scalar_type()) {
    return activation_backward_plain(gradient, input, name, gated);
  }
  const Tensor x = input.contiguous();
  const Tensor dy = gradient.contiguous();
  const Tensor dx = at::empty(x.sizes(), x.options());
  auto call = activation_call(x, name, gated);
  call.dy = dy.const_data_ptr();
  call.dx = dx.mutable_data_ptr();
  over_rows(dy.numel() / call.width, call.width, [&](int64_t begin, int64_t end) {
    kernel->activation_backward(call, begin, end);
  });
  return dx;
}

Tensor activation_meta(const Tensor& x, const std::string&, bool gated) {
  return at::empty(activated_sizes(x, gated), x.options());
}

Tensor activation_backward_meta(const Tensor&, const Tensor& x, const std::string&, bool) {
  return at::empty(x.sizes(), x.options());
}

} // namespace

void register_activation(Libraries& libraries) {
  libraries.definitions.def("activation(Tensor x, str kind, bool gated) -> Tensor");
  libraries.definitions.def(
      "activation_backward(Tensor dy, Tensor x, str kind, bool gated) -> Tensor"
  );
  libraries.cpu.impl("activation", activation_cpu);
  libraries.cpu.impl("activation_backward", activation_backward_cpu);
  libraries.cuda.impl("activation", activation_cuda);
  libraries.cuda.impl("activation_backward", activation_backward_cuda);
  libraries.plain.impl("activation", activation_plain);
  libraries.plain.impl("activation_backward", activation_backward_plain);
  libraries.meta.impl("activation", activation_meta);
  libraries.meta.impl("activation_backward", activation_backward_meta);
}

Tensor activation(const Tensor& x, const std::string& kind, bool gated) {
  static const auto op = find_op<decltype(activation_cpu)>("megahost::activation");
  return op.call(x, kind, gated);
}

Tensor activation_backward(const Tensor& dy, const Tensor& x, const std::string& kind, bool gated) {
  static const auto op =
      find_op<decltype(activation_backward_cpu)>("megahost::activation_backward");
  return op.call(dy, x, kind, gated);
}

} // namespace mh::ops
