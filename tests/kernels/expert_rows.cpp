// Rows to experts and back, and products of one matrix per expert.

#include "core/kernels/gemm.hpp"
#include "megahost/nn/expert_kernel.hpp"
#include "tests/kernels/operation.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

namespace mh::test {

namespace {

using at::Tensor;

/// Each token's choices among `experts`, of which expert 2 gets none and some choices are dropped.
Tensor choices_of(int64_t tokens, int64_t k, int64_t experts) {
  const Tensor token = at::arange(tokens).unsqueeze(1);
  const Tensor choice =
      (token * 5 + at::arange(k).unsqueeze(0) * 3 + token.floor_divide(7)) % experts;
  const Tensor dropped = ((token + at::arange(k)) % 6).eq(5).bitwise_or(choice.eq(2));
  return choice.masked_fill(dropped, -1);
}

/// The weighted sums of what went to the slots of experts 1 .. experts - 1, each row doubled there.
Case slots_case(
    std::string name, int64_t tokens, int64_t n, int64_t k, int64_t experts, int64_t pad
) {
  const Tensor choices = choices_of(tokens, k, experts);
  return {
      .name = std::move(name),
      .shapes = {{tokens, n}, {tokens, k}},
      .ours =
          [=](const Tensors& in) {
            const auto type = in[0].scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
            const auto [slots, ends] = ops::expert_slots(choices, 1, experts - 1, pad);
            const int64_t count = ends[experts - 1].item<int64_t>();
            const Tensor rows = ops::to_slots(in[0], slots, count);
            const Tensor once = ops::from_slots(rows, slots, Tensor());
            return once + ops::from_slots(rows * 2, slots, in[1].to(type));
          },
      .plain =
          [=](const Tensors& in) {
            const auto type = in[0].scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
            const Tensor taken = choices.ge(1).to(type);
            const Tensor weights = (taken * in[1].to(type)).sum(1, true);
            const Tensor x = in[0].to(type);
            return (x * taken.sum(1, true) + x * 2 * weights).to(in[0].scalar_type());
          }};
}

/// x through a matrix per expert and back through its transpose, and the matrices' gradients.
Case grouped_case(std::string name, std::vector<int64_t> ends, int64_t k, int64_t n) {
  const auto experts = static_cast<int64_t>(ends.size()) - 1;
  const int64_t rows = ends.back();
  const Tensor places = at::tensor(ends, at::kLong);
  return {
      .name = std::move(name),
      .shapes = {{rows, k}, {experts, n, k}},
      .ours =
          [=](const Tensors& in) {
            const Tensor x = in[0].detach(), w = in[1].detach();
            const auto type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
            const Tensor y = ops::grouped_product(x, w, places, /*transposed=*/true);
            const Tensor back = ops::grouped_product(y, w, places, /*transposed=*/false);
            Tensor sum = at::zeros(w.sizes(), w.options().dtype(type));
            ops::grouped_gradient_(sum, y, x, places);
            return at::cat(
                {y.reshape({-1}).to(type), back.reshape({-1}).to(type), sum.reshape({-1})}
            );
          },
      .plain =
          [=](const Tensors& in) {
            const Tensor x = in[0].detach(), w = in[1].detach();
            const auto type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
            Tensors ys, backs, sums;
            for (int64_t e = 0; e < experts; ++e) {
              const auto i = static_cast<size_t>(e);
              const Tensor part = x.narrow(0, ends[i], ends[i + 1] - ends[i]);
              ys.push_back(at::matmul(part, w[e].t()));
              backs.push_back(at::matmul(ys.back(), w[e]));
              sums.push_back(at::matmul(ys.back().t().to(type), part.to(type)).reshape({-1}));
            }
            return at::cat(
                {at::cat(ys).reshape({-1}).to(type),
                 at::cat(backs).reshape({-1}).to(type),
                 at::cat(sums)}
            );
          }};
}

/// The same as slots_case, by argsort, index_select and index_add.
Compute slots_by_index(int64_t tokens, int64_t k, int64_t experts) {
  const Tensor choices = choices_of(tokens, k, experts);
  return [=](const Tensors& in) {
    const int64_t dropped = choices.lt(1).sum().item<int64_t>();
    const Tensor taken = choices.reshape({-1})
                             .argsort(/*stable=*/true, 0)
                             .narrow(0, dropped, choices.numel() - dropped);
    const Tensor token = taken.floor_divide(k);
    const Tensor rows = in[0].index_select(0, token);
    const Tensor once = at::zeros_like(in[0]).index_add_(0, token, rows);
    const Tensor weights = in[1].reshape({-1}).index_select(0, taken).unsqueeze(1);
    return once + at::zeros_like(in[0]).index_add_(0, token, rows * 2 * weights);
  };
}

} // namespace

Operation slots_operation() {
  Operation op{
      .name = "rows to experts and back",
      .operators =
          {"megahost::expert_slots",
           "megahost::expert_scatter",
           "megahost::expert_gather",
           "megahost::expert_gather_backward"},
      .kernels = {at::kFloat, at::kBFloat16},
      .float_tolerance = 1e-6,
      .bf16_tolerance = 8e-3,
      .cases =
          {slots_case("one token", 1, 3, 1, 4, 0),
           slots_case("two of five", 13, 21, 2, 5, 0),
           slots_case("three of eight, padded", 17, 9, 3, 8, 17),
           slots_case("wide rows", 6, 1100, 2, 5, 0),
           slots_case("more bytes than are kept in caches", 4800, 768, 2, 9, 0)},
      .large = slots_case("4,096 tokens of 768, two of eight", 4096, 768, 2, 9, 0)};
  op.large.rival = slots_by_index(4096, 2, 9);
  return op;
}

Operation grouped_operation() {
  return {
      .name = "grouped product",
      .operators = {"megahost::grouped_product", "megahost::grouped_gradient_"},
      .kernels = {},
      .float_tolerance = 1e-6,
      .bf16_tolerance = 8e-3,
      .cases =
          {grouped_case("experts without rows", {0, 0, 3, 3, 8}, 6, 4),
           grouped_case("odd and even rows", {0, 7, 9, 34}, 16, 10),
           grouped_case("no rows at all", {0, 0, 0}, 4, 6)},
      .large = grouped_case(
          "4,096 rows of eight experts, 768 to 3,072",
          {0, 512, 1024, 1536, 2048, 2560, 3072, 3584, 4096},
          768,
          3072
      )};
}

} // namespace mh::test
