// Which operation made a NaN; what is not deterministic; how much memory a step takes.

#include "core/kernels/caching_allocator.hpp"
#include "core/train/deterministic.hpp"
#include "core/train/nan_watch.hpp"
#include "core/train/planned_peak.hpp"
#include "core/train/weights.hpp"
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
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

bool has(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

/// What is found in one step of four samples, two at a time.
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

struct Nothing : mh::Optimizer {
  [[nodiscard]] std::vector<mh::StateSpec> state() const override { return {{"a"}, {"b"}}; }

  void update(std::span<mh::UpdateItem>, const mh::Update&) const override {}
};

struct Given : mh::RecomputePolicy {
  explicit Given(std::vector<mh::Keep> keep)
      : keeps(std::move(keep)) {}

  [[nodiscard]] mh::Keep keep(int64_t layer) const override {
    return keeps.at(static_cast<size_t>(layer));
  }

  std::vector<mh::Keep> keeps;
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

  // weights that are no numbers are nobody's doing
  tiny::Built given(tiny::config());
  fill(given, "layers.0.mlp.up.weight", std::numeric_limits<double>::quiet_NaN());
  CHECK(found(given).empty());
}

TEST_CASE("the watch forgives masks and memory that nobody has written yet") {
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

TEST_CASE("the planned peak of a step is what its tensors take, within 5%") {
  mh::install_caching_allocator();
  auto config = tiny::config();
  config.layers = 6;
  config.hidden = 128;
  config.heads = 4;
  constexpr int64_t kLength = 256;
  constexpr int64_t kBatch = 16; // beside it the kernels' workspaces are small
  const mh::Keep whole, again{.everything = false}, mlp{.redo = {"mlp"}},
      light{.redo = {"norms", "activations"}};
  const at::Tensor tokens = at::arange(kLength * kBatch).view({kLength, kBatch}) % tiny::kVocab;
  const mh::Batch batch{
      .arrays =
          {{"tokens", tokens}, {"labels", tokens}, {"loss_mask", at::ones({kLength, kBatch})}},
      .samples = std::vector<int64_t>(kBatch, 0),
      .seq = kLength,
      .batch = kBatch};
  const Nothing optimizer;
  int64_t last = 0;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& keep :
         {std::vector<mh::Keep>(6, whole),
          std::vector<mh::Keep>{mlp, mlp, mlp, whole, whole, whole},
          std::vector<mh::Keep>(6, light),
          std::vector<mh::Keep>{again, again, again, mlp, mlp, mlp},
          std::vector<mh::Keep>(6, again)}) {
      const mh::Decoder decoder(config, {.vocab = tiny::kVocab, .seq_length = kLength});
      const mh::Mesh mesh;
      const mh::Rules rules;
      const mh::Builder::Args args{
          .mesh = &mesh, .rules = &rules, .dtype = dtype, .seq = kLength, .microbatch = kBatch};
      const int64_t planned = mh::planned_peak(decoder, args, at::kCPU, optimizer, {}, batch, keep);

      const int64_t before = mh::allocator_counts().used_bytes;
      const Given policy(keep);
      mh::Model model(decoder, args, &policy);
      model.parameters().allocate_gradients();
      const mh::Weights weights(model.parameters(), optimizer);
      mh::reset_peak_bytes();
      mh::StepContext context(mesh, rules, batch);
      context.training = true;
      context.loss_count = [](const std::string&) { return 1.0; };
      (void)model.forward(context);
      mh::backward(context.losses().at(0).sum);
      const int64_t measured = mh::allocator_counts().peak_bytes - before;
      CAPTURE(keep.front().everything);
      CAPTURE(planned);
      CHECK(
          static_cast<double>(measured) ==
          doctest::Approx(static_cast<double>(planned)).epsilon(0.05)
      );
      if (!keep.front().everything || !keep.front().redo.empty()) {
        CHECK(planned < last); // each plan takes less than the one before
      }
      last = planned;
    }
  }
}
