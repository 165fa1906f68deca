#include "core/program/simpler_forms.hpp"

#include "megahost/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/index_add.h>
#include <ATen/ops/log.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/select_scatter.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/slice_scatter.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>
#include <vector>

namespace mh::program {

namespace {

using at::Tensor;
using torch::jit::Stack;

/// An operator's arguments, in the order of its schema.
struct CallArguments {
  std::vector<c10::IValue> all;

  [[nodiscard]] Tensor tensor(size_t i) const { return all[i].toTensor(); }

  [[nodiscard]] Tensor tensor_or_none(size_t i) const {
    return all[i].isNone() ? Tensor() : all[i].toTensor();
  }

  [[nodiscard]] int64_t integer(size_t i) const { return all[i].toInt(); }

  [[nodiscard]] at::Scalar scalar(size_t i) const { return all[i].toScalar(); }

  [[nodiscard]] std::vector<int64_t> integers(size_t i) const { return all[i].toIntVector(); }

  [[nodiscard]] bool is_true(size_t i) const { return all[i].toBool(); }
};

using FormResults = std::vector<Tensor>;

template <size_t Count, FormResults (*Form)(const CallArguments&)>
void call_form(Stack& stack) {
  const CallArguments arguments{{stack.end() - static_cast<std::ptrdiff_t>(Count), stack.end()}};
  torch::jit::drop(stack, Count);
  for (Tensor& result : Form(arguments)) {
    stack.emplace_back(std::move(result));
  }
}

constexpr double kRootOfTwoOverPi = 2 / std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
constexpr double kCubic = 0.044715;

/// The normal distribution's share below x.
Tensor normal_share(const Tensor& x) {
  return (at::erf(x * (1 / std::numbers::sqrt2)) + 1) * 0.5;
}

Tensor gelu_tanh(const Tensor& x) {
  return at::tanh((x + x * x * x * kCubic) * kRootOfTwoOverPi);
}

FormResults gelu(const CallArguments& a) {
  const Tensor x = a.tensor(0);
  return {a.all[1].toStringRef() == "none" ? x * normal_share(x) : x * 0.5 * (gelu_tanh(x) + 1)};
}

FormResults gelu_backward(const CallArguments& a) {
  const Tensor g = a.tensor(0), x = a.tensor(1);
  if (a.all[2].toStringRef() == "none") {
    const Tensor density = at::exp(x * x * -0.5) * (0.5 * kRootOfTwoOverPi);
    return {g * (normal_share(x) + x * density)};
  }
  const Tensor t = gelu_tanh(x);
  const Tensor slope = (x * x * (3 * kCubic) + 1) * kRootOfTwoOverPi;
  return {g * ((t + 1) * 0.5 + x * 0.5 * (1 - t * t) * slope)};
}

FormResults silu(const CallArguments& a) {
  const Tensor x = a.tensor(0);
  return {x * at::sigmoid(x)};
}

FormResults silu_backward(const CallArguments& a) {
  const Tensor g = a.tensor(0), x = a.tensor(1), s = at::sigmoid(x);
  return {g * s * (x * (1 - s) + 1)};
}

FormResults relu(const CallArguments& a) {
  return {at::clamp_min(a.tensor(0), 0)};
}

FormResults sigmoid_backward(const CallArguments& a) {
  const Tensor y = a.tensor(1);
  return {a.tensor(0) * y * (1 - y)};
}

FormResults tanh_backward(const CallArguments& a) {
  const Tensor y = a.tensor(1);
  return {a.tensor(0) * (1 - y * y)};
}

FormResults softmax(const CallArguments& a) {
  const Tensor x = a.tensor(0);
  const int64_t dim = a.integer(1);
  const Tensor e = at::exp(x - at::amax(x, dim, /*keepdim=*/true));
  return {e / e.sum(dim, /*keepdim=*/true)};
}

FormResults softmax_backward(const CallArguments& a) {
  const Tensor y = a.tensor(1), gy = a.tensor(0) * y;
  return {gy - y * gy.sum(a.integer(2), /*keepdim=*/true)};
}

FormResults log_softmax(const CallArguments& a) {
  const Tensor x = a.tensor(0);
  const int64_t dim = a.integer(1);
  const Tensor shifted = x - at::amax(x, dim, /*keepdim=*/true);
  return {shifted - at::log(at::exp(shifted).sum(dim, /*keepdim=*/true))};
}

FormResults log_softmax_backward(const CallArguments& a) {
  const Tensor g = a.tensor(0);
  return {g - at::exp(a.tensor(1)) * g.sum(a.integer(2), /*keepdim=*/true)};
}

FormResults logsumexp(const CallArguments& a) {
  const Tensor x = a.tensor(0);
  const auto dims = a.integers(1);
  const Tensor top = at::amax(x, dims, /*keepdim=*/true);
  // A row of -inf alone needs no shift.
  const Tensor shift = at::where(top.abs().eq(INFINITY), at::zeros_like(top), top);
  const Tensor result = at::log(at::exp(x - shift).sum(dims, /*keepdim=*/true)) + shift;
  return {a.is_true(2) ? result : result.squeeze(dims)};
}

FormResults native_layer_norm(const CallArguments& a) {
  const Tensor given = a.tensor(0), weight = a.tensor_or_none(2), bias = a.tensor_or_none(3);
  std::vector<int64_t> dims;
  for (auto dim = static_cast<int64_t>(a.integers(1).size()); dim > 0; --dim) {
    dims.push_back(-dim);
  }
  const Tensor x = given.scalar_type() == at::kBFloat16 ? given.to(at::kFloat) : given;
  const Tensor mean = x.mean(dims, /*keepdim=*/true), centred = x - mean;
  const Tensor variance = (centred * centred).mean(dims, /*keepdim=*/true);
  const Tensor rstd = at::rsqrt(variance + a.all[4].toDouble());
  Tensor y = centred * rstd;
  y = weight.defined() ? y * weight : y;
  y = bias.defined() ? y + bias : y;
  return {y.to(given.scalar_type()), mean, rstd};
}

FormResults native_layer_norm_backward(const CallArguments& a) {
  const Tensor g = a.tensor(0), x = a.tensor(1), mean = a.tensor(3), rstd = a.tensor(4);
  const Tensor weight = a.tensor_or_none(5), bias = a.tensor_or_none(6);
  const auto normalised = static_cast<int64_t>(a.integers(2).size());
  std::vector<int64_t> inner, outer;
  for (int64_t dim = 0; dim < x.dim(); ++dim) {
    (dim < x.dim() - normalised ? outer : inner).push_back(dim);
  }
  const Tensor unit = (x - mean) * rstd, gw = weight.defined() ? g * weight : g;
  const auto mean_of = [&](const Tensor& t) { return t.mean(inner, /*keepdim=*/true); };
  const Tensor dx = (gw - mean_of(gw) - unit * mean_of(gw * unit)) * rstd;
  return {
      dx.to(x.scalar_type()),
      weight.defined() ? (g * unit).sum(outer) : Tensor(),
      bias.defined() ? g.sum(outer) : Tensor()};
}

FormResults embedding_backward(const CallArguments& a) {
  const Tensor g = a.tensor(0), rows = g.reshape({-1, g.size(-1)});
  const Tensor zeros = at::zeros({a.integer(2), g.size(-1)}, rows.options());
  return {at::index_add(zeros, 0, a.tensor(1).reshape({-1}), rows)};
}

FormResults select_backward(const CallArguments& a) {
  const Tensor g = a.tensor(0);
  const Tensor zeros = at::zeros(a.integers(1), g.options());
  return {at::select_scatter(zeros, g, a.integer(2), a.integer(3))};
}

FormResults slice_backward(const CallArguments& a) {
  const Tensor g = a.tensor(0);
  const Tensor zeros = at::zeros(a.integers(1), g.options());
  return {at::slice_scatter(zeros, g, a.integer(2), a.integer(3), a.integer(4), a.integer(5))};
}

FormResults addcmul(const CallArguments& a) {
  return {a.tensor(0) + a.tensor(1) * a.tensor(2) * a.scalar(3)};
}

FormResults addcdiv(const CallArguments& a) {
  return {a.tensor(0) + a.tensor(1) / a.tensor(2) * a.scalar(3)};
}

FormResults lerp(const CallArguments& a) {
  const Tensor x = a.tensor(0);
  return {x + (a.tensor(1) - x) * a.scalar(2)};
}

/// Sums of the elements so far, in as many steps as the length has bits.
FormResults cumsum(const CallArguments& a) {
  const Tensor given = a.tensor(0);
  Tensor x = given.scalar_type() == at::kBool ? given.to(at::kLong) : given;
  const int64_t dim = a.integer(1), size = x.size(dim);
  for (int64_t ahead = 1; ahead < size; ahead *= 2) {
    const Tensor first = at::zeros_like(x.narrow(dim, 0, ahead));
    x = x + at::cat({first, x.narrow(dim, 0, size - ahead)}, dim);
  }
  return {x};
}

/// The largest elements one after the other; of equal ones the first.
FormResults topk(const CallArguments& a) {
  Tensor x = a.tensor(0);
  const int64_t dim = a.integer(2) < 0 ? a.integer(2) + x.dim() : a.integer(2);
  MH_ASSERT(a.is_true(3), "topk has a form for the largest elements only");
  std::vector<int64_t> along(static_cast<size_t>(x.dim()), 1);
  along[static_cast<size_t>(dim)] = x.size(dim);
  const Tensor places = at::arange(x.size(dim), x.options().dtype(at::kLong)).view(along);
  std::vector<Tensor> values, indices;
  for (int64_t k = 0; k < a.integer(1); ++k) {
    const Tensor best = at::amax(x, dim, /*keepdim=*/true);
    const Tensor last = at::where(x.eq(best), places * -1, at::full_like(places, -x.size(dim)));
    const Tensor index = at::amax(last, dim, /*keepdim=*/true) * -1;
    values.push_back(best);
    indices.push_back(index);
    x = at::where(places.eq(index), at::full_like(x, -INFINITY), x);
  }
  return {at::cat(values, dim), at::cat(indices, dim)};
}

struct FormRow {
  std::string_view op;
  SimplerForm form;
};

constexpr FormRow kForms[] = {
    {"aten::_log_softmax", call_form<3, log_softmax>},
    {"aten::_log_softmax_backward_data", call_form<4, log_softmax_backward>},
    {"aten::_softmax", call_form<3, softmax>},
    {"aten::_softmax_backward_data", call_form<4, softmax_backward>},
    {"aten::addcdiv", call_form<4, addcdiv>},
    {"aten::addcmul", call_form<4, addcmul>},
    {"aten::cumsum", call_form<3, cumsum>},
    {"aten::embedding_dense_backward", call_form<5, embedding_backward>},
    {"aten::gelu", call_form<2, gelu>},
    {"aten::gelu_backward", call_form<3, gelu_backward>},
    {"aten::lerp.Scalar", call_form<3, lerp>},
    {"aten::logsumexp", call_form<3, logsumexp>},
    {"aten::native_layer_norm", call_form<5, native_layer_norm>},
    {"aten::native_layer_norm_backward", call_form<8, native_layer_norm_backward>},
    {"aten::relu", call_form<1, relu>},
    {"aten::select_backward", call_form<4, select_backward>},
    {"aten::sigmoid_backward", call_form<2, sigmoid_backward>},
    {"aten::silu", call_form<1, silu>},
    {"aten::silu_backward", call_form<2, silu_backward>},
    {"aten::slice_backward", call_form<6, slice_backward>},
    {"aten::tanh_backward", call_form<2, tanh_backward>},
    {"aten::topk", call_form<5, topk>},
};

} // namespace

SimplerForm simpler_form(const std::string& op) {
  const auto* found = std::lower_bound(
      std::begin(kForms),
      std::end(kForms),
      op,
      [](const FormRow& row, const std::string& name) { return row.op < name; }
  );
  return found != std::end(kForms) && found->op == op ? found->form : nullptr;
}

} // namespace mh::program
