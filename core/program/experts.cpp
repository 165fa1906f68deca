#include "core/program/experts.hpp"

#include "megahost/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>

namespace mh::program {

using at::Tensor;

std::tuple<Tensor, Tensor>
slots_form(const Tensor& choices, int64_t first, int64_t experts, int64_t pad) {
  if (pad == 0) {
    throw Error(
        "this step cannot become a program: how many tokens an expert gets is the router's choice",
        "give experts places of their own: set model.capacity_factor, and model.capacity_pad to true"
    );
  }
  const Tensor own = (choices - first).reshape({-1, 1});
  const Tensor all = at::arange(experts, choices.options()).view({1, -1});
  const Tensor mine = own.eq(all).to(at::kLong); // [tokens * choices, experts]
  const Tensor place = ((mine.cumsum(0) - 1) * mine).sum(1, /*keepdim=*/true);
  const Tensor other = own.lt(0).logical_or(own.ge(experts));
  const Tensor slots = (own * pad + place).masked_fill(other, -1);
  return {slots.view(choices.sizes()), at::arange(experts + 1, choices.options()) * pad};
}

Tensor product_form(const Tensor& x, const Tensor& w, const Tensor&, bool transposed) {
  const Tensor rows = x.view({w.size(0), -1, x.size(1)});
  return at::bmm(rows, transposed ? w.transpose(1, 2) : w).flatten(0, 1);
}

void gradient_form(Tensor sum, const Tensor& dy, const Tensor& x, const Tensor&) {
  const int64_t experts = sum.size(0);
  const auto wide = [&](const Tensor& rows) {
    return rows.to(sum.scalar_type()).view({experts, -1, rows.size(1)});
  };
  sum.add_(at::bmm(wide(dy).transpose(1, 2), wide(x)));
}

} // namespace mh::program
