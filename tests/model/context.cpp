#include "megahost/context.hpp"

#include "tests/nn/bench.hpp"

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>

#include <type_traits>

namespace mh {

using test::Bench;
using test::filled;

static_assert(!std::is_copy_constructible_v<StepContext>, "its losses would be counted twice");

TEST_CASE("a pass once more: its mode and what is cached, without the losses so far") {
  Bench bench;
  auto context = bench.context({.training = true, .seed = 3});
  const at::Tensor one = at::ones({});
  context.add_loss({"loss", one, ""});
  const at::Tensor made = context.cached("table", [] { return at::ones({2}); });
  auto again = context.again();
  CHECK(again.losses().empty());
  CHECK(again.mode().training);
  CHECK(again.mode().seed == 3);
  CHECK(&again.batch() == &context.batch());
  CHECK(again.cached("table", [] { return at::ones({3}); }).is_same(made));
  again.add_loss({"other", one, ""});
  CHECK(context.losses().size() == 1);
}

TEST_CASE("a pass whose tokens are apart shares nothing, and knows no factor of a loss") {
  Bench bench;
  WeightQueue queue;
  auto context = bench.context(
      {.training = true,
       .checking = true,
       .weight_queue = &queue,
       .loss_scale = 8,
       .loss_count = [](const std::string&) { return 2.0; }}
  );
  CHECK(context.loss_factor("", 0.5) == 0.5 / 2 * 8);
  (void)context.cached("table", [] { return at::ones({2}); });
  context.add_loss({"loss", at::ones({}), ""});
  Batch other = bench.batch;
  other.arrays["tokens"] = at::ones({5, 2}, at::kLong);
  auto apart = context.apart(other);
  CHECK(&apart.batch() == &other);
  CHECK(apart.array("tokens").sum().item<int64_t>() == 10);
  CHECK(&context.batch() == &bench.batch);
  CHECK(apart.mode().tokens_apart);
  CHECK(apart.mode().training);
  CHECK_FALSE(apart.mode().checking);
  CHECK(apart.mode().weight_queue == nullptr);
  CHECK_FALSE(apart.loss_factor("", 0.5).has_value());
  CHECK(apart.losses().empty());
  CHECK(apart.cached("table", [] { return at::ones({3}); }).size(0) == 3);
  CHECK_FALSE(context.mode().tokens_apart);
  CHECK(context.mode().checking);
}

TEST_CASE("passes of one microbatch share what is cached, if they are given the same") {
  Bench bench;
  const auto cached = std::make_shared<CachedTensors>();
  StepContext first(bench.mesh, bench.rules, bench.batch, {}, cached);
  StepContext second(bench.mesh, bench.rules, bench.batch, {.training = true}, cached);
  const at::Tensor made = first.cached("table", [] { return at::ones({2}); });
  CHECK(second.cached("table", [] { return at::ones({3}); }).is_same(made));
  CHECK_FALSE(first.mode().training);
}

TEST_CASE("a block's plan holds for as long as its scope, and for the parts that it names") {
  Bench bench;
  auto context = bench.context();
  const at::Tensor x = filled({3, 2, 6}, "x").requires_grad_();
  int64_t runs = 0;
  const auto run = [&](const char* part) {
    runs = 0;
    const at::Tensor y = context.part(part, {x}, [&](const auto& in) {
      ++runs;
      return in[0] * 2;
    });
    torch::autograd::backward({y.sum()});
    return runs;
  };
  const Keep keep{.redo = {"mlp"}};
  {
    const auto plan = context.keeping(keep);
    CHECK(run("mlp") == 2);
    CHECK(run("norms") == 1);
    {
      const Keep everything;
      const auto inner = context.keeping(everything);
      CHECK(run("mlp") == 1);
    }
    CHECK(run("mlp") == 2);
  }
  CHECK(run("mlp") == 1);
}

TEST_CASE("a part that reads its input twice gives the same bits whether it is kept or recomputed"
) {
  Bench bench;
  auto context = bench.context();
  const auto run = [](const auto& in) { // a norm of plain operations
    return in[0] / in[0].square().mean(-1, /*keepdim=*/true).add(1e-5).sqrt();
  };
  const auto reader = [](const at::Tensor& y) { return y.sin(); };
  const auto gradients = [&](const Keep& keep, bool reads) {
    const auto plan = context.keeping(keep);
    const at::Tensor x = filled({64, 2, 6}, "x").to(at::kFloat).requires_grad_();
    const at::Tensor y =
        reads ? context.part("norms", {x}, run, reader) : reader(context.part("norms", {x}, run));
    torch::autograd::backward({(x * 3 + y).cos().sum()}); // the residual stream goes on, too
    return x.grad();
  };
  const Keep redone{.redo = {"norms"}};
  for (const bool reads : {false, true}) {
    CHECK(at::equal(gradients({}, reads), gradients(redone, reads)));
  }
}

TEST_CASE("a context speaks of another sequence while a scope lives, in a recomputed part too") {
  Bench bench;
  bench.batch.arrays["other_positions"] = at::tensor({7, 8, 9}, at::kLong).unsqueeze(1);
  auto context = bench.context();
  const Keep keep{.everything = true, .redo = {"mlp"}};
  const auto plan = context.keeping(keep);
  std::vector<int64_t> lengths;
  const at::Tensor x = filled({3, 2, 6}, "x").requires_grad_();
  at::Tensor y;
  {
    const auto tokens = context.within("other");
    CHECK(context.seq() == 3);
    CHECK(context.token_index().size(0) == 3);
    CHECK(context.positions().sum().item<int64_t>() == 24);
    CHECK(context.dims({axis::embed, 6})[0].size == 3);
    {
      const auto own = context.within("");
      CHECK(context.seq() == 5);
    }
    y = context.part("mlp", {x}, [&](const auto& in) {
      lengths.push_back(context.seq());
      return in[0] * 2;
    });
  }
  CHECK(context.seq() == 5);
  CHECK(context.token_index().size(0) == 5);
  CHECK(context.positions().sum().item<int64_t>() == 10);
  torch::autograd::backward({y.sum()});
  CHECK(lengths == std::vector<int64_t>{3, 3});
}

} // namespace mh
