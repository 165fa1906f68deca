#include "plugins/models/bert/retrieval_loss.hpp"

#include <megahost/context.hpp>
#include <megahost/mesh.hpp>
#include <megahost/placement.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/autograd.h>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace {

using at::Tensor;

struct Found {
  double loss, top1, top2;
  Tensor sum;
};

/// The losses of rows [batch, dim], each number of a context in a row of `labels`.
Found losses(
    const Tensor& queries,
    const std::vector<Tensor>& contexts,
    const Tensor& labels,
    const Tensor& pairs,
    const Tensor& negatives = {},
    double scale = 1
) {
  const mh::Mesh mesh;
  const mh::Rules rules;
  mh::Batch batch;
  batch.batch = queries.size(0);
  batch.arrays["labels"] = labels;
  batch.arrays["pair_mask"] = pairs;
  if (negatives.defined()) {
    batch.arrays["negative_mask"] = negatives;
  }
  mh::StepContext context(mesh, rules, batch);
  mh::bert::add_retrieval_losses(
      queries, contexts, {.scale = scale, .report_top = {1, 2}}, context
  );
  const auto& all = context.losses();
  REQUIRE(all.size() == 3);
  CHECK(all[0].name == "retrieval loss");
  CHECK(all[1].name == "top-1 accuracy");
  CHECK(all[1].weight == 0);
  return {
      all[0].sum.item<double>(), all[1].sum.item<double>(), all[2].sum.item<double>(), all[0].sum};
}

Tensor rows(std::vector<std::vector<double>> values) {
  std::vector<double> flat;
  for (const auto& row : values) {
    flat.insert(flat.end(), row.begin(), row.end());
  }
  return at::tensor(flat, at::kDouble).view({static_cast<int64_t>(values.size()), -1});
}

} // namespace

TEST_CASE("the loss of two queries by hand") {
  const Tensor queries = rows({{1, 0}, {0, 2}});
  const Tensor contexts = rows({{3, 1}, {1, 1}});
  const Tensor labels = at::arange(2, at::kLong).view({1, 2}), pairs = at::ones({1, 2});
  // Scores: 3 and 1 of the first query, 2 and 2 of the second.
  const double expected = std::log(1 + std::exp(-2.0)) + std::log(2.0);
  const Found found = losses(queries, {contexts}, labels, pairs);
  CHECK(found.loss == doctest::Approx(expected));
  CHECK(found.top1 == 1); // as good as another is not found
  CHECK(found.top2 == 2);
  CHECK(
      losses(queries, {contexts}, labels, pairs, {}, 0.5).loss ==
      doctest::Approx(std::log(1 + std::exp(-1.0)) + std::log(2.0))
  );
}

TEST_CASE("hard negatives of all samples are wrong contexts; absent ones and right ones are not") {
  const Tensor queries = rows({{1, 0}, {0, 2}});
  const Tensor contexts = rows({{3, 1}, {1, 1}}), hard = rows({{2, 0}, {0, 1}});
  const Tensor labels = at::tensor({0, 1, 2, 3}, at::kLong).view({2, 2});
  const Tensor pairs = at::ones({1, 2});
  const auto sum = [](double own, std::vector<double> others) {
    double all = std::exp(own);
    for (const double score : others) {
      all += std::exp(score);
    }
    return std::log(all) - own;
  };
  // The first query scores 3, 1 and 2, 0; the second scores 2, 2 and 0, 2.
  const Found both = losses(queries, {contexts, hard}, labels, pairs, at::ones({1, 2}));
  CHECK(both.loss == doctest::Approx(sum(3, {1, 2, 0}) + sum(2, {2, 0, 2})));
  const Tensor first = at::tensor({1.0F, 0.0F}).view({1, 2});
  const Found one = losses(queries, {contexts, hard}, labels, pairs, first);
  CHECK(one.loss == doctest::Approx(sum(3, {1, 2}) + sum(2, {2, 0})));
  // The first query's context is also the second one's hard negative.
  const Tensor again = at::tensor({0, 1, 2, 0}, at::kLong).view({2, 2});
  const Found same = losses(queries, {contexts, hard}, again, pairs, at::ones({1, 2}));
  CHECK(same.loss == doctest::Approx(sum(3, {1, 2}) + sum(2, {2, 0, 2})));
}

TEST_CASE("samples that do not count are no negatives either") {
  const Tensor queries = rows({{1, 0}, {0, 2}, {5, 5}});
  const Tensor contexts = rows({{3, 1}, {1, 1}, {9, 9}});
  const Tensor labels = at::arange(3, at::kLong).view({1, 3});
  const Tensor pairs = at::tensor({1.0F, 1.0F, 0.0F}).view({1, 3});
  const Found found = losses(queries, {contexts}, labels, pairs);
  CHECK(found.loss == doctest::Approx(std::log(1 + std::exp(-2.0)) + std::log(2.0)));
  const Found none = losses(queries, {contexts}, labels, at::ones({1, 3}) * 0);
  CHECK(none.loss == 0);
}

TEST_CASE("the gradient is that of differences") {
  Tensor queries = at::randn({4, 3}, at::kDouble).requires_grad_();
  Tensor contexts = at::randn({4, 3}, at::kDouble).requires_grad_();
  Tensor hard = at::randn({4, 3}, at::kDouble).requires_grad_();
  const Tensor labels = at::arange(8, at::kLong).view({2, 4}), pairs = at::ones({1, 4});
  const auto loss = [&] {
    return losses(queries, {contexts, hard}, labels, pairs, at::ones({1, 4}), 0.7);
  };
  const auto gradients = torch::autograd::grad({loss().sum}, {queries, contexts, hard});
  const Tensor all[] = {queries, contexts, hard};
  for (size_t i = 0; i < 3; ++i) {
    for (int64_t element = 0; element < 12; ++element) {
      Tensor value = all[i].detach().view({-1})[element];
      const double kept = value.item<double>(), step = 1e-6;
      value.fill_(kept + step);
      const double above = loss().loss;
      value.fill_(kept - step);
      const double below = loss().loss;
      value.fill_(kept);
      CHECK(
          gradients[i].view({-1})[element].item<double>() ==
          doctest::Approx((above - below) / (2 * step)).epsilon(1e-5)
      );
    }
  }
}
