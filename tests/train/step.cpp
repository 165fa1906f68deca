#include "core/step/weights.hpp"
#include "megahost/error.hpp"
#include "megahost/recompute.hpp"
#include "tiny.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

namespace {

/// w -= lr * scale * g
class PlainDescent : public mh::Optimizer {
public:
  [[nodiscard]] std::vector<mh::StateSpec> state() const override { return {{"count"}}; }

  void update(std::span<mh::UpdateItem> items, const mh::Update& update) const override {
    for (auto& item : items) {
      item.weight.sub_(item.gradient * (update.lr * update.gradient_scale));
      item.state.at(0).add_(1);
    }
  }
};

class Redo : public mh::RecomputePolicy {
public:
  explicit Redo(mh::Keep keep)
      : keep_(std::move(keep)) {}

  [[nodiscard]] mh::Keep keep(int64_t) const override { return keep_; }

private:
  mh::Keep keep_;
};

double relative(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

} // namespace

TEST_CASE("gradients do not depend on how a batch is cut into microbatches") {
  tiny::Built model(tiny::config());
  const auto whole = model.gradients(4);
  const auto whole_loss = model.losses.at(0);
  const auto pieces = model.gradients(1);
  CHECK(whole.norm().item<double>() > 0.1);
  CHECK(relative(pieces, whole) < 1e-5);
  CHECK(model.losses.at(0).value == doctest::Approx(whole_loss.value).epsilon(1e-6));
  // samples 0 and 3 have half their labels masked
  CHECK(model.losses.at(0).count == 3 * tiny::kSeq);
}

TEST_CASE("dropout masks depend on the sample, not on its microbatch, and on the seed") {
  tiny::Built model(tiny::config(0.2));
  const auto whole = model.gradients(4, 5);
  CHECK(relative(model.gradients(1, 5), whole) < 1e-5);
  CHECK(relative(model.gradients(2, 5), whole) < 1e-5);
  CHECK(relative(model.gradients(4, 6), whole) > 0.05);
  CHECK(at::equal(model.gradients(4, 5), whole));
}

TEST_CASE("recomputation changes no bit") {
  for (const double dropout : {0.0, 0.1}) {
    tiny::Built plain(tiny::config(dropout));
    const auto expected = plain.gradients(2);
    for (const auto& keep :
         {mh::Keep{.everything = false},
          mh::Keep{.everything = true, .redo = {"core_attention"}},
          mh::Keep{.everything = true, .redo = {"core_attention", "norms", "activations"}}}) {
      const Redo policy(keep);
      tiny::Built again(tiny::config(dropout), &policy);
      CHECK(at::equal(again.gradients(2), expected));
    }
  }
}

TEST_CASE("the gradient is that of the mean loss over unmasked labels") {
  tiny::Built model(tiny::config());
  const auto gradient = model.gradients(2);
  auto& parameter = *model.model->parameters().find("layers.1.mlp.down.weight");
  const auto here = [&] {
    const mh::BatchLayout layout{.seq = tiny::kSeq, .micro = 4, .microbatches = 1};
    return mh::forward_only(
               model.passes(), mh::load_batches(model.corpus, mh::Split::train, 0, layout)
    )
        .at(0)
        .value;
  };
  const at::NoGradGuard no_grad;
  const double step = 1e-2;
  const double slope = parameter.main_grad.square().sum().item<double>();
  parameter.value.add_(parameter.main_grad, step / std::sqrt(slope));
  const double up = here();
  parameter.value.sub_(parameter.main_grad, 2 * step / std::sqrt(slope));
  CHECK((up - here()) / (2 * step) == doctest::Approx(std::sqrt(slope)).epsilon(1e-2));
}

TEST_CASE("clipping is Megatron's: clip / (norm + 1e-6) where that is below 1") {
  CHECK(mh::clip_factor(0.5, 1) == 1);
  CHECK(mh::clip_factor(4, 1) == doctest::Approx(1 / (4 + 1e-6)).epsilon(1e-12));
  CHECK(mh::clip_factor(4, 0) == 1);
}

TEST_CASE("a step updates weights by the clipped gradient and leaves them alone if it is not finite"
) {
  tiny::Built model(tiny::config());
  auto& parameters = model.model->parameters();
  PlainDescent descent;
  mh::Weights weights(*model.sums, descent, {.weight_decay = 0.1});
  const mh::BatchLayout layout{.seq = tiny::kSeq, .micro = 2, .microbatches = 2};
  const auto batches = mh::load_batches(model.corpus, mh::Split::train, 0, layout);
  auto& parameter = *parameters.find("layers.0.attention.out.weight");
  const auto before = parameter.value.detach().clone();
  (void)mh::forward_backward(model.passes(), batches, 1);
  const auto gradient = parameter.main_grad.clone();
  model.sums->clear();
  const auto result = mh::train_step(
      model.passes(),
      weights,
      descent,
      batches,
      {.seed = 1, .clip = 0.01, .update = {.step = 1, .lr = 2}}
  );
  REQUIRE(result.finite());
  CHECK(result.updated);
  REQUIRE(result.gradient_norm > 0.01);
  const auto expected = before - gradient * (2 * mh::clip_factor(result.gradient_norm, 0.01));
  CHECK(at::equal(parameter.value.detach(), expected));
  CHECK(model.main_gradients().count_nonzero().item<int64_t>() == 0);

  {
    const at::NoGradGuard no_grad;
    parameters.find("head.norm.weight")->value.fill_(std::numeric_limits<float>::quiet_NaN());
  }
  const auto kept = parameter.value.detach().clone();
  const auto bad = mh::train_step(
      model.passes(),
      weights,
      descent,
      batches,
      {.seed = 1, .clip = 1, .update = {.step = 2, .lr = 2}}
  );
  CHECK_FALSE(bad.finite());
  CHECK_FALSE(bad.updated);
  CHECK(at::equal(parameter.value.detach(), kept));
  CHECK_FALSE(weights.finite());
  CHECK(model.main_gradients().count_nonzero().item<int64_t>() == 0);
}

TEST_CASE("bf16 parameters are rounded from float32 masters, which do not lose small updates") {
  tiny::Built model(tiny::config(), nullptr, at::kBFloat16);
  auto& parameters = model.model->parameters();
  PlainDescent descent;
  mh::Weights weights(*model.sums, descent);
  CHECK(weights.bytes() > 0);
  const auto before = parameters.find("head.norm.weight")->value.detach().clone();
  for (int i = 0; i < 800; ++i) {
    for (auto& parameter : parameters.all()) {
      parameter.main_grad.fill_(-1e-5);
    }
    weights.update(descent, {.step = i + 1, .lr = 1});
  }
  const auto& after = parameters.find("head.norm.weight")->value;
  CHECK((after.scalar_type() == at::kBFloat16));
  // one update of 1e-5 next to 1 vanishes in bf16, 800 of them are one unit in the last place
  CHECK(
      (after.detach() - before).to(at::kFloat).mean().item<double>() == doctest::Approx(0.0078125)
  );
  for (const auto& stored : weights.stored()) {
    CHECK((stored.data.scalar_type() == at::kFloat));
  }
}

TEST_CASE("decay goes to matrices only") {
  tiny::Built model(tiny::config());

  class Recorder : public PlainDescent {
  public:
    mutable std::vector<std::pair<std::string, double>> decay;

    void update(std::span<mh::UpdateItem> items, const mh::Update&) const override {
      for (const auto& item : items) {
        decay.emplace_back(item.name, item.weight_decay);
      }
    }
  } recorder;

  mh::Weights weights(*model.sums, recorder, {.weight_decay = 0.25});
  weights.update(recorder, {});
  CHECK(recorder.decay.size() > 10);
  for (const auto& [name, decay] : recorder.decay) {
    const bool vector = name.ends_with("bias") || name.find("norm") != std::string::npos;
    CAPTURE(name);
    CHECK(decay == (vector ? 0 : 0.25));
  }
}

TEST_CASE("a batch without labels is refused") {
  tiny::Built model(tiny::config());
  const mh::BatchLayout layout{.seq = tiny::kSeq, .micro = 1, .microbatches = 1};
  auto batches = mh::load_batches(model.corpus, mh::Split::train, 0, layout);
  batches[0].arrays.erase("labels");
  CHECK_THROWS_AS((void)mh::forward_backward(model.passes(), batches, 0), mh::Error);
}
