// Shape functions of operators that models of others call and LibTorch has no Meta kernel for in
// C++: elementwise ones, reductions, and a few that look things up.

#include "core/meta/shapes.hpp"

#include <ATen/ExpandUtils.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/result_type.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

namespace mh::ops {

namespace {

using at::Tensor;
using Pair = std::tuple<Tensor, Tensor>;
using Tensors = std::vector<Tensor>;

/// The dtype of an elementwise operator's result.
enum class ResultDtype : uint8_t { first, boolean, promoted };

struct Elementwise {
  const char* op;
  ResultDtype dtype = ResultDtype::first;
};

constexpr Elementwise kElementwise[] = {
    {"abs"},
    {"relu"},
    {"hardswish"},
    {"hardswish_backward"},
    {"hardtanh"},
    {"hardtanh_backward"},
    {"log_sigmoid_backward"},
    {"logit"},
    {"mse_loss_backward"},
    {"binary_cross_entropy_backward"},
    {"native_dropout_backward"},
    {"_prelu_kernel"},
    {"_logcumsumexp"},
    {"remainder.Scalar_Tensor"},
    {"isnan", ResultDtype::boolean},
    {"logical_not", ResultDtype::boolean},
    {"logical_and", ResultDtype::boolean},
    {"logical_or", ResultDtype::boolean},
    {"logical_xor", ResultDtype::boolean},
    {"rsub.Tensor", ResultDtype::promoted},
    {"floor_divide", ResultDtype::promoted}};

/// The same into a given tensor, which is the last argument.
constexpr const char* kInto[] = {
    "abs.out",
    "hardswish.out",
    "hardtanh.out",
    "logit.out",
    "nan_to_num.out",
    "logical_not.out",
    "logical_and.out",
    "logical_or.out",
    "logical_xor.out",
    "floor_divide.out",
    "bernoulli.out",
    "where.self_out"};

Tensors tensors_of(const torch::jit::Stack& stack, size_t arguments) {
  Tensors tensors;
  for (const auto& argument : at::ArrayRef(stack).slice(stack.size() - arguments)) {
    if (argument.isTensor() && argument.toTensor().defined()) {
      tensors.push_back(argument.toTensor());
    }
  }
  return tensors;
}

std::vector<int64_t> broadcast(const Tensors& tensors) {
  std::vector<int64_t> sizes = tensors.front().sizes().vec();
  for (const Tensor& tensor : tensors) {
    sizes = at::infer_size(sizes, tensor.sizes());
  }
  return sizes;
}

at::ScalarType dtype_of(ResultDtype dtype, const Tensors& tensors) {
  if (dtype == ResultDtype::boolean) {
    return at::kBool;
  }
  return dtype == ResultDtype::promoted && tensors.size() > 1
             ? at::result_type(tensors[0], tensors[1])
             : tensors[0].scalar_type();
}

/// Strides are those of an argument that has all of the result's elements, if one has.
struct ElementwiseShape : c10::OperatorKernel {
  explicit ElementwiseShape(ResultDtype of)
      : dtype(of) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const size_t arguments = op.schema().arguments().size();
    const Tensors tensors = tensors_of(*stack, arguments);
    const auto sizes = broadcast(tensors);
    const auto options = tensors[0].options().dtype(dtype_of(dtype, tensors));
    const auto whole = std::find_if(tensors.begin(), tensors.end(), [&](const Tensor& tensor) {
      return tensor.sizes() == at::IntArrayRef(sizes);
    });
    Tensor result =
        whole == tensors.end() ? at::empty(sizes, options) : at::empty_like(*whole, options);
    torch::jit::drop(*stack, arguments);
    torch::jit::push(*stack, std::move(result));
  }

  ResultDtype dtype;
};

struct IntoShape : c10::OperatorKernel {
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const size_t arguments = op.schema().arguments().size();
    Tensors tensors = tensors_of(*stack, arguments);
    Tensor out = std::move(tensors.back());
    tensors.pop_back();
    out.resize_(broadcast(tensors));
    torch::jit::drop(*stack, arguments);
    torch::jit::push(*stack, std::move(out));
  }
};

/// Without the dimensions `dims`, or with 1 there; none or an empty list: all of them.
Tensor reduced(
    const Tensor& x,
    at::OptionalIntArrayRef dims,
    bool keep,
    std::optional<at::ScalarType> dtype = std::nullopt
) {
  std::vector<bool> gone(static_cast<size_t>(x.dim()), !dims || dims->empty());
  for (const int64_t dim : dims.value_or(at::IntArrayRef())) {
    gone[static_cast<size_t>(at::maybe_wrap_dim(dim, x.dim()))] = true;
  }
  std::vector<int64_t> sizes;
  for (int64_t dim = 0; dim < x.dim(); ++dim) {
    if (!gone[static_cast<size_t>(dim)]) {
      sizes.push_back(x.size(dim));
    } else if (keep) {
      sizes.push_back(1);
    }
  }
  return at::empty(sizes, x.options().dtype(dtype.value_or(x.scalar_type())));
}

Tensor
spread(const Tensor& x, at::OptionalIntArrayRef dims, const std::optional<at::Scalar>&, bool keep) {
  return reduced(x, dims, keep);
}

Pair spread_and_mean(
    const Tensor& x, at::OptionalIntArrayRef dims, const std::optional<at::Scalar>&, bool keep
) {
  return {reduced(x, dims, keep), reduced(x, dims, keep)};
}

Tensor sum_of(
    const Tensor& x, at::OptionalIntArrayRef dims, bool keep, std::optional<at::ScalarType> dtype
) {
  const bool whole = at::isIntegralType(x.scalar_type(), /*includeBool=*/true);
  return reduced(x, dims, keep, dtype.value_or(whole ? at::kLong : x.scalar_type()));
}

Tensor one_of(const Tensor& x) {
  return at::empty({}, x.options());
}

Tensor loss_of(const Tensor& x, const Tensor& target, int64_t reduction) {
  return reduction == 0 ? at::empty(at::infer_size(x.sizes(), target.sizes()), x.options())
                        : one_of(x);
}

Tensor as_other(const Tensor&, const Tensor& x) {
  return at::empty_like(x);
}

Tensor indices(const Tensor& x, bool short_ones) {
  return at::empty(x.sizes(), x.options().dtype(short_ones ? at::kInt : at::kLong));
}

} // namespace

void register_meta_elementwise(torch::Library& aten) {
  for (const Elementwise& row : kElementwise) {
    aten.impl(
        row.op,
        torch::CppFunction::makeFromBoxedFunctor(std::make_unique<ElementwiseShape>(row.dtype))
    );
  }
  for (const char* op : kInto) {
    aten.impl(op, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<IntoShape>()));
  }
  aten.impl("var.correction", spread);
  aten.impl("std.correction", spread);
  aten.impl("var_mean.correction", spread_and_mean);
  aten.impl("std_mean.correction", spread_and_mean);
  aten.impl("nansum", sum_of);
  aten.impl("prod", [](const Tensor& x, std::optional<at::ScalarType> dtype) {
    return sum_of(x, std::nullopt, /*keep=*/false, dtype);
  });
  aten.impl("count_nonzero.dim_IntList", [](const Tensor& x, at::IntArrayRef dims) {
    return reduced(x, dims, /*keep=*/false, at::kLong);
  });
  aten.impl("max", one_of);
  aten.impl("min", one_of);
  aten.impl("trace", one_of);
  aten.impl("dot", [](const Tensor& x, const Tensor&) { return one_of(x); });
  aten.impl("huber_loss", [](const Tensor& x, const Tensor& target, int64_t reduction, double) {
    return loss_of(x, target, reduction);
  });
  aten.impl(
      "binary_cross_entropy",
      [](const Tensor& x, const Tensor& target, const std::optional<Tensor>&, int64_t reduction) {
        return loss_of(x, target, reduction);
      }
  );
  aten.impl("log_sigmoid_forward", [](const Tensor& x) {
    return Pair{at::empty_like(x), at::empty_like(x)};
  });
  aten.impl("native_dropout", [](const Tensor& x, double, std::optional<bool>) {
    return Pair{at::empty_like(x), at::empty_like(x, x.options().dtype(at::kBool))};
  });
  aten.impl("glu_backward", [](const Tensor& gradient, const Tensor& x, int64_t) {
    return as_other(gradient, x);
  });
  aten.impl("_prelu_kernel_backward", [](const Tensor&, const Tensor& x, const Tensor&) {
    return Pair{at::empty_like(x), at::empty_like(x)};
  });
  aten.impl(
      "embedding_dense_backward",
      [](const Tensor& gradient, const Tensor&, int64_t rows, int64_t, bool) {
        return at::empty({rows, gradient.size(-1)}, gradient.options());
      }
  );
  aten.impl(
      "unfold_backward",
      [](const Tensor& gradient, at::IntArrayRef sizes, int64_t, int64_t, int64_t) {
        return at::empty(sizes, gradient.options());
      }
  );
  aten.impl("take", [](const Tensor& x, const Tensor& index) {
    return at::empty(index.sizes(), x.options());
  });
  aten.impl("multinomial", [](const Tensor& x, int64_t count, bool, std::optional<at::Generator>) {
    auto sizes = x.sizes().vec();
    sizes.back() = count;
    return at::empty(sizes, x.options().dtype(at::kLong));
  });
  aten.impl("bucketize.Tensor", [](const Tensor& x, const Tensor&, bool short_ones, bool) {
    return indices(x, short_ones);
  });
  aten.impl(
      "searchsorted.Tensor",
      [](const Tensor&,
         const Tensor& x,
         bool short_ones,
         bool,
         std::optional<std::string_view>,
         const std::optional<Tensor>&) { return indices(x, short_ones); }
  );
}

} // namespace mh::ops
