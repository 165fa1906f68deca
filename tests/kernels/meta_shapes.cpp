// Operators of others on the Meta device: sizes, strides and dtypes are those on the CPU.

#include "core/kernels/ops.hpp"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

namespace meta_shapes_tests {

namespace {

using at::Tensor;

struct Row {
  const char* name;
  std::function<std::vector<Tensor>(const Tensor& x, const Tensor& y, const Tensor& ids)> run;
};

/// x [4, 6] of numbers in (0, 1), y [6] and ids [4, 6] below 4.
const std::vector<Row> kRows{
    {"abs",
     [](auto& x, auto&, auto&) {
       return std::vector{x.abs(), x.t().abs()};
     }},
    {"abs_", [](auto& x, auto&, auto&) { return std::vector{x.clone().abs_()}; }},
    {"logical_or", [](auto& x, auto& y, auto&) { return std::vector{x.logical_or(y)}; }},
    {"logical_and_", [](auto& x, auto&, auto&) { return std::vector{x.gt(0).logical_and_(x)}; }},
    {"logical_not", [](auto& x, auto&, auto&) { return std::vector{x.t().logical_not()}; }},
    {"relu", [](auto& x, auto&, auto&) { return std::vector{x.t().relu()}; }},
    {"hardswish", [](auto& x, auto&, auto&) { return std::vector{at::hardswish(x)}; }},
    {"hardtanh", [](auto& x, auto&, auto&) { return std::vector{at::hardtanh(x)}; }},
    {"logit", [](auto& x, auto&, auto&) { return std::vector{x.logit(1e-3)}; }},
    {"log_sigmoid", [](auto& x, auto&, auto&) { return std::vector{at::log_sigmoid(x)}; }},
    {"isnan", [](auto& x, auto&, auto&) { return std::vector{x.isnan()}; }},
    {"nan_to_num", [](auto& x, auto&, auto&) { return std::vector{x.nan_to_num()}; }},
    {"rsub", [](auto& x, auto& y, auto&) { return std::vector{at::rsub(y, x)}; }},
    {"where",
     [](auto& x, auto& y, auto&) {
       return std::vector{at::where(x.gt(0.5), x, y), at::where(x.gt(0.5), x, 0.0)};
     }},
    {"logsumexp", [](auto& x, auto&, auto&) { return std::vector{x.logsumexp(-1, true)}; }},
    {"logcumsumexp", [](auto& x, auto&, auto&) { return std::vector{x.logcumsumexp(0)}; }},
    {"var",
     [](auto& x, auto&, auto&) {
       return std::vector{x.var(-1, false, true), x.var()};
     }},
    {"std",
     [](auto& x, auto&, auto&) {
       const auto [deviation, mean] = at::std_mean(x, {0});
       return std::vector{x.std(1), deviation, mean};
     }},
    {"max",
     [](auto& x, auto&, auto& ids) {
       return std::vector{x.max(), ids.min(), x.prod()};
     }},
    {"nansum",
     [](auto& x, auto&, auto& ids) {
       return std::vector{x.nansum(1), ids.nansum()};
     }},
    {"dot", [](auto&, auto& y, auto&) { return std::vector{y.dot(y)}; }},
    {"index_select",
     [](auto& x, auto&, auto& ids) { return std::vector{x.index_select(0, ids[0])}; }},
    {"take", [](auto& x, auto&, auto& ids) { return std::vector{x.take(ids)}; }},
    {"embedding", [](auto& x, auto&, auto& ids) { return std::vector{at::embedding(x, ids)}; }},
    {"embedding_dense_backward",
     [](auto& x, auto&, auto& ids) {
       return std::vector{at::embedding_dense_backward(at::embedding(x, ids), ids, 4, -1, false)};
     }},
    {"searchsorted",
     [](auto& x, auto& y, auto&) {
       return std::vector{at::searchsorted(y, x), at::bucketize(x, y, /*out_int32=*/true)};
     }},
    {"multinomial", [](auto& x, auto&, auto&) { return std::vector{x.multinomial(2)}; }},
    {"glu_backward",
     [](auto& x, auto&, auto&) { return std::vector{at::glu_backward(at::glu(x), x, -1)}; }},
    {"unfold_backward",
     [](auto& x, auto&, auto&) {
       return std::vector{at::unfold_backward(x.unfold(1, 3, 1).contiguous(), x.sizes(), 1, 3, 1)};
     }},
    {"huber_loss",
     [](auto& x, auto& y, auto&) {
       return std::vector{at::huber_loss(x, y.expand_as(x)), at::mse_loss(x, y.expand_as(x))};
     }},
    {"native_dropout", [](auto& x, auto&, auto&) {
       const auto [out, mask] = at::native_dropout(x, 0.5, true);
       return std::vector{out, mask, at::native_dropout_backward(out, mask, 2.0)};
     }}};

} // namespace

TEST_CASE("operators have the shapes on the Meta device that they have on the CPU") {
  mh::ops::ensure_registered();
  const Tensor x = (at::arange(24, at::kFloat).view({4, 6}) + 1) / 25, y = x[1].clone();
  const Tensor ids = at::arange(24, at::kLong).view({4, 6}).remainder(4);
  for (const Row& row : kRows) {
    CAPTURE(std::string(row.name));
    const auto real = row.run(x, y, ids);
    const auto meta = row.run(x.to(at::kMeta), y.to(at::kMeta), ids.to(at::kMeta));
    REQUIRE(real.size() == meta.size());
    for (size_t i = 0; i < real.size(); ++i) {
      CAPTURE(i);
      CHECK(meta[i].is_meta());
      CHECK(meta[i].sizes() == real[i].sizes());
      CHECK(meta[i].strides() == real[i].strides());
      CHECK((meta[i].scalar_type() == real[i].scalar_type()));
    }
  }
}

} // namespace meta_shapes_tests
