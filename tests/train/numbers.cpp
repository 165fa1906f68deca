// The operation that made a NaN; operators that are not deterministic.

#include "core/step/deterministic.hpp"
#include "core/step/nan_watch.hpp"
#include "megahost/device.hpp"
#include "megahost/error.hpp"
#include "tiny.hpp"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

namespace {

bool has(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

/// The finding of one step of four samples, two at a time.
std::string found(tiny::Built& model, double loss_scale = 1) {
  mh::NanWatch watch;
  auto passes = model.passes();
  passes.watch = &watch;
  const mh::BatchLayout layout{.seq = tiny::kSeq, .micro = 2, .microbatches = 2};
  const auto batches = mh::load_batches(model.corpus, mh::Split::train, 0, layout);
  (void)mh::forward_backward(passes, batches, 1, false, loss_scale);
  return watch.finding();
}

void fill(tiny::Built& model, const std::string& name, double value) {
  const at::NoGradGuard no_grad;
  model.model->parameters().find(name)->value.fill_(value);
}

struct Processor : mh::Device {
  [[nodiscard]] at::Device device() const override { return at::kCPU; }

  [[nodiscard]] std::string summary() const override { return "cpu"; }

  [[nodiscard]] double peak_flops(at::ScalarType) const override { return 0; }

  [[nodiscard]] int64_t memory() const override { return 0; }

  [[nodiscard]] int64_t peak_memory() const override { return 0; }
};

} // namespace

TEST_CASE("the watch names the operation, its block and pass; a sound step has no finding") {
  tiny::Built sound(tiny::config(0.1));
  CHECK(found(sound).empty());

  tiny::Built forward(tiny::config());
  fill(forward, "layers.1.mlp.up.weight", 1e20);
  fill(forward, "layers.1.mlp.up.bias", 1e20);
  fill(forward, "layers.1.mlp.down.weight", 1e20);
  const std::string first = found(forward);
  CAPTURE(first);
  CHECK(has(first, " in layers.1/mlp, forward of microbatch 0"));

  tiny::Built attention(tiny::config());
  fill(attention, "layers.0.attention.q.weight", 1e30);
  fill(attention, "layers.0.attention.q.bias", 1e30);
  fill(attention, "layers.0.attention.k.bias", 1e30);
  const std::string second = found(attention);
  CAPTURE(second);
  CHECK(has(second, " in layers.0/attention, forward of microbatch 0"));

  // the same loss with a factor that only gradients overflow by
  tiny::Built backward(tiny::config());
  fill(backward, "layers.1.mlp.down.weight", 1e4);
  const std::string third = found(backward, 1e36);
  CAPTURE(third);
  CHECK(has(third, "backward of microbatch 0"));

  // weights that are no numbers are no block's doing
  tiny::Built given(tiny::config());
  fill(given, "layers.0.mlp.up.weight", std::numeric_limits<double>::quiet_NaN());
  CHECK(found(given).empty());
}

TEST_CASE("the watch forgives masks and memory that was not written yet") {
  mh::NanWatch watch;
  const at::Tensor x = at::ones({4});
  (void)x.masked_fill(x.gt(0), -INFINITY);
  (void)at::empty({1000});
  CHECK(watch.finding().empty());
  at::Tensor zero = at::zeros({2});
  zero.log_();
  CHECK(watch.finding() == "aten::log_, forward of microbatch 0");
  watch.clear();
  (void)(zero + 1); // from what was infinite before
  CHECK(watch.finding().empty());
}

TEST_CASE("an operation without a deterministic form is refused by name") {
  const Processor cpu;
  CHECK(has(mh::set_deterministic(true, cpu), "which costs nothing"));
  const auto scatter = [] {
    at::Tensor x = at::zeros({4});
    x.put_(at::arange(2), at::ones({2}));
  };
  try {
    mh::without_nondeterminism(scatter);
    FAIL("no error");
  } catch (const mh::Error& error) {
    CHECK(has(error.what(), "operation put_ gives other bits each time"));
  }
  CHECK(mh::set_deterministic(false, cpu).empty());
  mh::without_nondeterminism(scatter);
  CHECK_FALSE(at::globalContext().deterministicAlgorithms());
}
