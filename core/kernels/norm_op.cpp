#include "core/kernels/registration.hpp"
#include "core/kernels/row_kernels.hpp"
#include "core/kernels/row_ops.hpp"
#include "megahost/parallel.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rsqrt.h>

#include <algorithm>

namespace mh::ops {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Results = std::tuple<Tensor, Tensor, Tensor, Tensor>; // y, mean, rstd, x + added (or empty)

void check(const Tensor& x, const OptionalTensor& added, const Tensor& weight) {
  TORCH_CHECK(
      x.dim() > 0 && weight.dim() == 1 && weight.size(0) == x.size(-1),
      "a norm over the last dimension of ",
      x.sizes(),
      " needs as many weights; got ",
      weight.sizes()
  );
  TORCH_CHECK(
      !added || (added->sizes() == x.sizes() && added->scalar_type() == x.scalar_type()),
      "what a norm adds to its input is like it; got ",
      x.sizes(),
      " and ",
      added ? added->sizes() : at::IntArrayRef()
  );
}

Tensor none_like(const Tensor& x) {
  return at::empty({0}, x.options());
}

/// Rows of all results, the sum's where there is one.
Results empty_results(const Tensor& x, bool added, bool centred) {
  const int64_t rows = x.numel() / std::max<int64_t>(x.size(-1), 1);
  const auto options = x.options().dtype(statistics_type(x));
  return {
      at::empty(x.sizes(), x.options()),
      at::empty({centred ? rows : 0}, options),
      at::empty({rows}, options),
      added ? at::empty(x.sizes(), x.options()) : none_like(x)};
}

Results norm_plain(
    const Tensor& x,
    const OptionalTensor& added,
    const Tensor& weight,
    const OptionalTensor& bias,
    double eps,
    bool centred
) {
  check(x, added, weight);
  const Tensor sum = added ? x + *added : x;
  Tensor wide = sum.to(statistics_type(x)).reshape({-1, x.size(-1)});
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
  return {y.to(x.scalar_type()).view(x.sizes()), mean, rstd, added ? sum : none_like(x)};
}

Tensor norm_backward_plain(
    const Tensor& gradient,
    const Tensor& x,
    const Tensor& weight,
    const Tensor& mean,
    const Tensor& rstd,
    const OptionalTensor& dsum,
    bool centred,
    OptionalTensor dweight,
    OptionalTensor dbias
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
  if (dweight) {
    dweight->add_(dy.mul(normal).sum(0));
  }
  if (dbias) {
    dbias->add_(dy.sum(0));
  }
  dx = dx.mul_(rstd.unsqueeze(1)).to(x.scalar_type()).view(x.sizes());
  return dsum ? dx.add_(*dsum) : dx;
}

/// Whether weight and bias have the input's type, which kernels read them in.
bool are_alike(const Tensor& input, const Tensor& weight, const OptionalTensor& bias) {
  const auto type = input.scalar_type();
  return weight.scalar_type() == type && (!bias || bias->scalar_type() == type);
}

template <class T>
T* data_or_null(const OptionalTensor& x) {
  return x ? x->mutable_data_ptr<T>() : nullptr;
}

const void* const_data_or_null(const OptionalTensor& x) {
  return x ? x->const_data_ptr() : nullptr;
}

OptionalTensor contiguous(const OptionalTensor& x) {
  return x ? OptionalTensor(x->contiguous()) : std::nullopt;
}

Results norm_cuda(
    const Tensor& input,
    const OptionalTensor& term,
    const Tensor& weight,
    const OptionalTensor& bias,
    double eps,
    bool centred
) {
  const auto* kernels = cuda_row_kernels(input);
  if (kernels == nullptr || !are_alike(input, weight, bias)) {
    return norm_plain(input, term, weight, bias, eps, centred);
  }
  check(input, term, weight);
  const Tensor x = input.contiguous();
  const OptionalTensor added = contiguous(term);
  Results results = empty_results(x, added.has_value(), centred);
  const auto& [y, mean, rstd, sum] = results;
  const cuda::NormLaunch call{
      .type = cuda_type(x),
      .rows = rstd.size(0),
      .columns = x.size(-1),
      .eps = static_cast<float>(eps),
      .x = x.const_data_ptr(),
      .added = const_data_or_null(added),
      .weight = weight.const_data_ptr(),
      .bias = const_data_or_null(bias),
      .sum = sum.mutable_data_ptr(),
      .y = y.mutable_data_ptr(),
      .mean = centred ? mean.mutable_data_ptr<float>() : nullptr,
      .rstd = rstd.mutable_data_ptr<float>()};
  start_kernel(kernels->norm, call, x.device());
  return results;
}

/// Whether a sum of gradients is absent or as the kernels add to it.
bool is_row_of_floats(const OptionalTensor& sums) {
  return !sums || (sums->scalar_type() == at::kFloat && sums->is_contiguous());
}

Tensor norm_backward_cuda(
    const Tensor& gradient,
    const Tensor& input,
    const Tensor& weight,
    const Tensor& mean,
    const Tensor& rstd,
    const OptionalTensor& residual,
    bool centred,
    OptionalTensor dweight,
    OptionalTensor dbias
) {
  const auto* kernels = cuda_row_kernels(input);
  const auto type = input.scalar_type();
  if (kernels == nullptr || weight.scalar_type() != type || gradient.scalar_type() != type ||
      (residual && residual->scalar_type() != type) || !is_row_of_floats(dweight) ||
      !is_row_of_floats(dbias)) {
    return norm_backward_plain(
        gradient, input, weight, mean, rstd, residual, centred, dweight, dbias
    );
  }
  const Tensor x = input.contiguous(), dy = gradient.contiguous();
  const OptionalTensor dsum = contiguous(residual);
  const Tensor dx = at::empty(x.sizes(), x.options());
  const int64_t rows = rstd.size(0), columns = x.size(-1);
  const int64_t chunks = (rows + cuda::kNormChunk - 1) / cuda::kNormChunk;
  const bool summed = dweight || dbias;
  const Tensor sums = at::empty({summed ? chunks : 0, centred ? 2 : 1, columns}, rstd.options());
  const cuda::NormGradientLaunch call{
      .type = cuda_type(x),
      .rows = rows,
      .columns = columns,
      .dy = dy.const_data_ptr(),
      .x = x.const_data_ptr(),
      .weight = weight.const_data_ptr(),
      .dsum = const_data_or_null(dsum),
      .mean = centred ? mean.const_data_ptr<float>() : nullptr,
      .rstd = rstd.const_data_ptr<float>(),
      .dx = dx.mutable_data_ptr(),
      .sums = summed ? sums.mutable_data_ptr<float>() : nullptr};
  start_kernel(kernels->norm_gradient, call, x.device());
  if (summed) {
    const cuda::RowSumsLaunch add{
        .type = cuda::GpuType::fp32,
        .rows = chunks,
        .columns = sums.size(1) * columns,
        .split = columns,
        .x = sums.const_data_ptr(),
        .sums = data_or_null<float>(dweight),
        .rest = data_or_null<float>(dbias)};
    start_kernel(kernels->row_sums, add, x.device());
  }
  return dx;
}

Results norm_cpu(
    const Tensor& input,
    const OptionalTensor& added,
    const Tensor& weight,
    const OptionalTensor& bias,
    double eps,
    bool centred
) {
  const auto* kernel = row_kernels(input);
  if (kernel == nullptr || !are_alike(input, weight, bias)) {
    return norm_plain(input, added, weight, bias, eps, centred);
  }
  check(input, added, weight);
  const Tensor x = (added ? input + *added : input).contiguous();
  Results results = empty_results(x, /*added=*/false, centred);
  const auto& [y, mean, rstd, _] = results;
  const kernels::NormCall call{
      .columns = x.size(-1),
      .centred = centred,
      .eps = static_cast<float>(eps),
      .x = x.const_data_ptr(),
      .weight = weight.const_data_ptr(),
      .bias = const_data_or_null(bias),
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
  if (added) {
    std::get<3>(results) = x;
  }
  return results;
}

Tensor norm_backward_cpu(
    const Tensor& gradient,
    const Tensor& input,
    const Tensor& weight,
    const Tensor& mean,
    const Tensor& rstd,
    const OptionalTensor& dsum,
    bool centred,
    OptionalTensor dweight,
    OptionalTensor dbias
) {
  const auto* kernel = row_kernels(input);
  if (kernel == nullptr || weight.scalar_type() != input.scalar_type() ||
      gradient.scalar_type() != input.scalar_type()) {
    return norm_backward_plain(gradient, input, weight, mean, rstd, dsum, centred, dweight, dbias);
  }
  const Tensor x = input.contiguous();
  const Tensor dy = gradient.contiguous();
  Tensor dx = at::empty(x.sizes(), x.options());
  const int64_t rows = rstd.size(0);
  const int64_t chunks = (rows + kernels::kNormChunk - 1) / kernels::kNormChunk;
  const Tensor weight_sums = at::empty({chunks, x.size(-1)}, rstd.options());
  const Tensor bias_sums = at::empty({centred ? chunks : 0, x.size(-1)}, rstd.options());
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
      .dweight = weight_sums.mutable_data_ptr<float>(),
      .dbias = centred ? bias_sums.mutable_data_ptr<float>() : nullptr};
  parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t first = chunk * kernels::kNormChunk;
      kernel->norm_backward(call, first, std::min(first + kernels::kNormChunk, rows));
    }
  });
  if (dweight) {
    dweight->add_(weight_sums.sum(0));
  }
  if (dbias) {
    dbias->add_(bias_sums.sum(0));
  }
  return dsum ? dx.add_(*dsum) : dx;
}

Results norm_meta(
    const Tensor& x,
    const OptionalTensor& added,
    const Tensor& weight,
    const OptionalTensor&,
    double,
    bool centred
) {
  check(x, added, weight);
  return empty_results(x, added.has_value(), centred);
}

Tensor norm_backward_meta(
    const Tensor&,
    const Tensor& x,
    const Tensor&,
    const Tensor&,
    const Tensor& rstd,
    const OptionalTensor&,
    bool centred,
    OptionalTensor,
    OptionalTensor
) {
  const int64_t chunks = (rstd.size(0) + cuda::kNormChunk - 1) / cuda::kNormChunk;
  const Tensor sums = at::empty({chunks, centred ? 2 : 1, x.size(-1)}, rstd.options());
  return at::empty(x.sizes(), x.options());
}

OptionalTensor optional(const Tensor& x) {
  return x.defined() ? OptionalTensor(x) : std::nullopt;
}

} // namespace

void register_norm(Libraries& libraries) {
  libraries.definitions.def("norm(Tensor x, Tensor? added, Tensor weight, Tensor? bias, float eps, "
                            "bool centred) -> (Tensor, Tensor, Tensor, Tensor)");
  libraries.definitions.def("norm_backward(Tensor dy, Tensor x, Tensor weight, Tensor mean, "
                            "Tensor rstd, Tensor? dsum, bool centred, Tensor(a!)? dweight, "
                            "Tensor(b!)? dbias) -> Tensor");
  libraries.cpu.impl("norm", norm_cpu);
  libraries.cpu.impl("norm_backward", norm_backward_cpu);
  libraries.cuda.impl("norm", norm_cuda);
  libraries.cuda.impl("norm_backward", norm_backward_cuda);
  libraries.plain.impl("norm", norm_plain);
  libraries.plain.impl("norm_backward", norm_backward_plain);
  libraries.meta.impl("norm", norm_meta);
  libraries.meta.impl("norm_backward", norm_backward_meta);
}

NormResult norm(
    const Tensor& x,
    const Tensor& added,
    const Tensor& weight,
    const Tensor& bias,
    double eps,
    bool centred
) {
  static const auto op = find_op<decltype(norm_cpu)>("megahost::norm");
  const auto [y, mean, rstd, sum] =
      op.call(x, optional(added), weight, optional(bias), eps, centred);
  return {y, added.defined() ? sum : x, mean, rstd};
}

Tensor norm_backward(
    const Tensor& dy,
    const Tensor& sum,
    const Tensor& weight,
    const Tensor& mean,
    const Tensor& rstd,
    const Tensor& dsum,
    bool centred,
    const Tensor& dweight,
    const Tensor& dbias
) {
  static const auto op = find_op<decltype(norm_backward_cpu)>("megahost::norm_backward");
  return op.call(
      dy, sum, weight, mean, rstd, optional(dsum), centred, optional(dweight), optional(dbias)
  );
}

} // namespace mh::ops
