#include "core/kernels/registration.hpp"
#include "core/kernels/row_kernels.hpp"
#include "core/kernels/row_ops.hpp"
#include "megahost/parallel.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/_fused_rms_norm_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/rsqrt.h>

#include <algorithm>

namespace mh::ops {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;

void check(const Tensor& x, const Tensor& weight) {
  TORCH_CHECK(
      x.dim() > 0 && weight.dim() == 1 && weight.size(0) == x.size(-1),
      "a norm over the last dimension of ",
      x.sizes(),
      " needs as many weights; got ",
      weight.sizes()
  );
}

Triple empty_results(const Tensor& x, bool centred) {
  const int64_t rows = x.numel() / std::max<int64_t>(x.size(-1), 1);
  const auto options = x.options().dtype(statistics_type(x));
  return {
      at::empty(x.sizes(), x.options()),
      at::empty({centred ? rows : 0}, options),
      at::empty({rows}, options)};
}

Triple norm_plain(
    const Tensor& x, const Tensor& weight, const OptionalTensor& bias, double eps, bool centred
) {
  check(x, weight);
  Tensor wide = x.to(statistics_type(x)).reshape({-1, x.size(-1)});
  Tensor mean = at::empty({0}, wide.options());
  if (centred) {
    mean = wide.mean(-1);
    wide = wide - mean.unsqueeze(1);
  }
  const Tensor rstd = at::rsqrt(wide.square().mean(-1).add_(eps));
  Tensor y = wide.mul(rstd.unsqueeze(1)).mul_(weight);
  if (bias) {
    y.add_(*bias);
  }
  return {y.to(x.scalar_type()).view(x.sizes()), mean, rstd};
}

Triple norm_backward_plain(
    const Tensor& gradient,
    const Tensor& x,
    const Tensor& weight,
    const Tensor& mean,
    const Tensor& rstd,
    bool centred
) {
  const auto type = statistics_type(x);
  const Tensor dy = gradient.to(type).reshape({-1, x.size(-1)});
  Tensor normal = x.to(type).reshape({-1, x.size(-1)});
  if (centred) {
    normal = normal - mean.unsqueeze(1);
  }
  normal = normal * rstd.unsqueeze(1);
  const Tensor scaled = dy.mul(weight);
  Tensor dx = scaled - normal * scaled.mul(normal).mean(-1, /*keepdim=*/true);
  if (centred) {
    dx = dx - scaled.mean(-1, /*keepdim=*/true);
  }
  return {
      dx.mul_(rstd.unsqueeze(1)).to(x.scalar_type()).view(x.sizes()),
      dy.mul(normal).sum(0),
      centred ? dy.sum(0) : at::empty({0}, dy.options())};
}

/// Whether LibTorch's fused kernels serve these tensors.
bool fused(const Tensor& x, const Tensor& weight) {
  const auto type = x.scalar_type();
  return x.numel() > 0 && weight.scalar_type() == type &&
         (type == at::kFloat || type == at::kBFloat16 || type == at::kHalf);
}

/// One kernel, which computes in float32 and rounds once, as the plain form does.
Triple norm_cuda(
    const Tensor& x, const Tensor& weight, const OptionalTensor& bias, double eps, bool centred
) {
  if (!fused(x, weight) || (!centred && bias)) {
    return norm_plain(x, weight, bias, eps, centred);
  }
  check(x, weight);
  if (centred) {
    const auto [y, mean, rstd] = at::native_layer_norm(x, {x.size(-1)}, weight, bias, eps);
    return {y, mean.reshape({-1}), rstd.reshape({-1})};
  }
  const auto [y, rstd] = at::_fused_rms_norm(x, {x.size(-1)}, weight, eps);
  return {y, at::empty({0}, rstd.options()), rstd.reshape({-1})};
}

/// The gradients of weight and bias, the latter where `centred`: by our kernel and one sum, or by
/// LibTorch's element-wise ones.
std::pair<Tensor, Tensor> weight_gradients_cuda(
    const Tensor& x, const Tensor& dy, const Tensor& mean, const Tensor& rstd, bool centred
) {
  const auto* kernels = cuda_row_kernels(x);
  if (kernels == nullptr || !rstd.is_contiguous() || !mean.is_contiguous()) {
    const auto type = statistics_type(x);
    const Tensor scale = rstd.unsqueeze(1);
    Tensor normal = centred ? x.sub(mean.unsqueeze(1)).mul_(scale) : x.mul(scale);
    return {
        normal.mul_(dy).sum(0),
        centred ? dy.sum(0, /*keepdim=*/false, type) : at::empty({0}, x.options().dtype(type))};
  }
  constexpr int64_t kChunk = 64;
  const int64_t chunks = (x.size(0) + kChunk - 1) / kChunk;
  const auto wide = x.options().dtype(at::kFloat);
  const Tensor dweight = at::empty({chunks, x.size(1)}, wide);
  const Tensor dbias = at::empty({centred ? chunks : 0, x.size(1)}, wide);
  const cuda::NormGradientCall call{
      .type = cuda_type(x),
      .rows = x.size(0),
      .columns = x.size(1),
      .chunk = kChunk,
      .x = x.const_data_ptr(),
      .dy = dy.const_data_ptr(),
      .mean = centred ? mean.const_data_ptr<float>() : nullptr,
      .rstd = rstd.const_data_ptr<float>(),
      .dweight = dweight.mutable_data_ptr<float>(),
      .dbias = centred ? dbias.mutable_data_ptr<float>() : nullptr};
  start_kernel(kernels->norm_gradient, call, x.device());
  return {dweight.sum(0), centred ? dbias.sum(0) : at::empty({0}, wide)};
}

// The fused kernels would round the weight's gradient to the weight's type: it is summed here.
Triple norm_backward_cuda(
    const Tensor& gradient,
    const Tensor& input,
    const Tensor& weight,
    const Tensor& mean,
    const Tensor& rstd,
    bool centred
) {
  if (!fused(input, weight) || gradient.scalar_type() != input.scalar_type()) {
    return norm_backward_plain(gradient, input, weight, mean, rstd, centred);
  }
  const Tensor x = rows_of(input.contiguous());
  const Tensor dy = rows_of(gradient.contiguous());
  const Tensor scale = rstd.unsqueeze(1);
  const Tensor dx =
      centred ? std::get<0>(at::native_layer_norm_backward(
                    dy,
                    x,
                    {x.size(1)},
                    mean.unsqueeze(1),
                    scale,
                    weight,
                    std::nullopt,
                    {true, false, false}
                ))
              : std::get<0>(
                    at::_fused_rms_norm_backward(dy, x, {x.size(1)}, scale, weight, {true, false})
                );
  const auto [dweight, dbias] = weight_gradients_cuda(x, dy, mean, rstd, centred);
  return {dx.view(input.sizes()), dweight, dbias};
}

Triple norm_cpu(
    const Tensor& input, const Tensor& weight, const OptionalTensor& bias, double eps, bool centred
) {
  const auto* kernel = row_kernels(input);
  const bool same = weight.scalar_type() == input.scalar_type() &&
                    (!bias || bias->scalar_type() == input.scalar_type());
  if (kernel == nullptr || !same) {
    return norm_plain(input, weight, bias, eps, centred);
  }
  check(input, weight);
  const Tensor x = input.contiguous();
  const Triple results = empty_results(x, centred);
  const auto& [y, mean, rstd] = results;
  const kernels::NormCall call{
      .columns = x.size(-1),
      .centred = centred,
      .eps = static_cast<float>(eps),
      .x = x.const_data_ptr(),
      .weight = weight.const_data_ptr(),
      .bias = bias ? bias->const_data_ptr() : nullptr,
      .y = y.mutable_data_ptr(),
      .mean = mean.mutable_data_ptr<float>(),
      .rstd = rstd.mutable_data_ptr<float>(),
      .dy = nullptr,
      .dx = nullptr,
      .dweight = nullptr,
      .dbias = nullptr};
  over_rows(rstd.size(0), call.columns, [&](int64_t begin, int64_t end) {
    kernel->norm_forward(call, begin, end);
  });
  return results;
}

Triple norm_backward_cpu(
    const Tensor& gradient,
    const Tensor& input,
    const Tensor& weight,
    const Tensor& mean,
    const Tensor& rstd,
    bool centred
) {
  const auto* kernel = row_kernels(input);
  if (kernel == nullptr || weight.scalar_type() != input.scalar_type() ||
      gradient.scalar_type() != input.scalar_type()) {
    return norm_backward_plain(gradient, input, weight, mean, rstd, centred);
  }
  const Tensor x = input.contiguous();
  const Tensor dy = gradient.contiguous();
  const Tensor dx = at::empty(x.sizes(), x.options());
  const int64_t rows = rstd.size(0);
  const int64_t chunks = (rows + kernels::kNormChunk - 1) / kernels::kNormChunk;
  const Tensor dweight = at::empty({chunks, x.size(-1)}, rstd.options());
  const Tensor dbias = at::empty({centred ? chunks : 0, x.size(-1)}, rstd.options());
  const kernels::NormCall call{
      .columns = x.size(-1),
      .centred = centred,
      .eps = 0,
      .x = x.const_data_ptr(),
      .weight = weight.const_data_ptr(),
      .bias = nullptr,
      .y = nullptr,
      .mean = mean.mutable_data_ptr<float>(),
      .rstd = rstd.mutable_data_ptr<float>(),
      .dy = dy.const_data_ptr(),
      .dx = dx.mutable_data_ptr(),
      .dweight = dweight.mutable_data_ptr<float>(),
      .dbias = centred ? dbias.mutable_data_ptr<float>() : nullptr};
  parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t first = chunk * kernels::kNormChunk;
      kernel->norm_backward(call, first, std::min(first + kernels::kNormChunk, rows));
    }
  });
  return {dx, dweight.sum(0), centred ? dbias.sum(0) : at::empty({0}, rstd.options())};
}

Triple
norm_meta(const Tensor& x, const Tensor& weight, const OptionalTensor&, double, bool centred) {
  check(x, weight);
  return empty_results(x, centred);
}

Triple norm_backward_meta(
    const Tensor&, const Tensor& x, const Tensor&, const Tensor&, const Tensor& rstd, bool centred
) {
  return {
      at::empty(x.sizes(), x.options()),
      at::empty({x.size(-1)}, rstd.options()),
      at::empty({centred ? x.size(-1) : 0}, rstd.options())};
}

} // namespace

void register_norm(Libraries& libraries) {
  libraries.definitions.def("norm(Tensor x, Tensor weight, Tensor? bias, float eps, bool centred) "
                            "-> (Tensor, Tensor, Tensor)");
  libraries.definitions.def("norm_backward(Tensor dy, Tensor x, Tensor weight, Tensor mean, "
                            "Tensor rstd, bool centred) -> (Tensor, Tensor, Tensor)");
  libraries.cpu.impl("norm", norm_cpu);
  libraries.cpu.impl("norm_backward", norm_backward_cpu);
  libraries.cuda.impl("norm", norm_cuda);
  libraries.cuda.impl("norm_backward", norm_backward_cuda);
  libraries.plain.impl("norm", norm_plain);
  libraries.plain.impl("norm_backward", norm_backward_plain);
  libraries.meta.impl("norm", norm_meta);
  libraries.meta.impl("norm_backward", norm_backward_meta);
}

Triple norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, bool centred) {
  static const auto op = find_op<decltype(norm_cpu)>("megahost::norm");
  return op.call(x, weight, bias.defined() ? OptionalTensor(bias) : std::nullopt, eps, centred);
}

Triple norm_backward(
    const Tensor& dy,
    const Tensor& x,
    const Tensor& weight,
    const Tensor& mean,
    const Tensor& rstd,
    bool centred
) {
  static const auto op = find_op<decltype(norm_backward_cpu)>("megahost::norm_backward");
  return op.call(dy, x, weight, mean, rstd, centred);
}

} // namespace mh::ops
