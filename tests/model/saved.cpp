#include "megahost/saved.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/autograd.h>

#include <doctest/doctest.h>

#include <memory>

namespace mh {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Times : torch::autograd::Function<Times> {
  struct Saved {
    double factor;
    std::shared_ptr<int> witness;
  };

  static at::Tensor
  forward(AutogradContext* ctx, const at::Tensor& x, double factor, std::shared_ptr<int> witness) {
    save(ctx, Saved{factor, std::move(witness)});
    return x * factor;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    return {gradients[0] * get_saved<Saved>(ctx).factor, at::Tensor(), at::Tensor()};
  }
};

struct Other {
  double factor;
};

} // namespace

TEST_CASE("what a Function saves is there in each backward pass, and gone with the graph") {
  const at::Tensor x = at::tensor({1.0, 2.0}).requires_grad_();
  auto witness = std::make_shared<int>(0);
  const std::weak_ptr<int> kept = witness;
  at::Tensor y = Times::apply(x, 3.0, std::move(witness));
  CHECK(!kept.expired());
  const at::Tensor dy = at::tensor({1.0, 10.0});
  torch::autograd::backward({y}, {dy}, /*retain_graph=*/true);
  torch::autograd::backward({y}, {dy});
  CHECK(at::equal(x.grad(), dy * 6.0));
  y.reset();
  CHECK(kept.expired());
}

TEST_CASE("what a Function saves is gone at once where no gradient is wanted") {
  auto witness = std::make_shared<int>(0);
  const std::weak_ptr<int> kept = witness;
  const at::Tensor y = Times::apply(at::tensor({1.0}), 3.0, std::move(witness));
  CHECK(y.item<double>() == 3);
  CHECK(kept.expired());
}

TEST_CASE("a Function that reads what it did not save is told so") {
  AutogradContext ctx;
  CHECK_THROWS_WITH_AS(
      (void)get_saved<Other>(&ctx), doctest::Contains("the Function saved nothing"), InternalError
  );
  save(&ctx, Times::Saved{2, nullptr});
  CHECK(get_saved<Times::Saved>(&ctx).factor == 2);
  CHECK_THROWS_WITH_AS((void)get_saved<Other>(&ctx), doctest::Contains("not a"), InternalError);
  CHECK_THROWS_WITH_AS(
      save(&ctx, Other{1}), doctest::Contains("a Function saves one struct"), InternalError
  );
}

} // namespace mh
