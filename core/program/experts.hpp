#pragma once
/// Mixtures of experts in a program: our operators by those of LibTorch where each expert has as
/// many rows as its capacity, whatever the router says.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>

namespace mh::program {

/// `mh::ops::expert_slots` by counting.
///
/// Throws:  mh::Error if experts have no places of their own (`pad` is 0)
[[nodiscard]] std::tuple<at::Tensor, at::Tensor>
slots_form(const at::Tensor& choices, int64_t first, int64_t experts, int64_t pad);

/// `mh::ops::grouped_product` of experts that have one number of rows.
///
/// Shapes:  x [experts * rows, k]; w [experts, n, k] (transposed) or [experts, k, n]
[[nodiscard]] at::Tensor
product_form(const at::Tensor& x, const at::Tensor& w, const at::Tensor& ends, bool transposed);

/// `mh::ops::grouped_gradient_` of such experts.
void gradient_form(
    at::Tensor sum, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& ends
);

} // namespace mh::program
