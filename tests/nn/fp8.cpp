// FP8: rounding and scales bit for bit, the linear layer against written-out arithmetic.

#include "core/model/fp8.hpp"

#include "core/kernels/fp8_ops.hpp"
#include "megahost/context.hpp"
#include "megahost/gradients.hpp"
#include "megahost/model.hpp"
#include "megahost/nn/decoder.hpp"
#include "megahost/nn/linear.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <vector>

using namespace mh;

namespace {

/// The nearest value with `mantissa` bits behind the leading one and exponents from `least` on,
/// ties to even, at most `largest`.
float nearest(float x, int mantissa, int least, float largest) {
  if (std::isnan(x) || x == 0) {
    return x;
  }
  if (std::isinf(x)) {
    return std::copysign(largest, x);
  }
  const int exponent = std::max(std::ilogb(x), least);
  const float unit = std::ldexp(1.0F, exponent - mantissa);
  const float rounded = std::nearbyint(x / unit) * unit; // exact but for the rounding itself
  return std::clamp(rounded, -largest, largest);
}

float e4m3(float x) {
  return nearest(x, 3, -6, 448);
}

float e5m2(float x) {
  return nearest(x, 2, -14, 57344);
}

/// Each element of x * scale, rounded to E4M3, or to E5M2 if it is a gradient.
at::Tensor by_hand(const at::Tensor& x, float scale, bool gradient) {
  at::Tensor y = (x.to(at::kFloat) * scale).contiguous();
  auto* data = y.mutable_data_ptr<float>();
  for (int64_t i = 0; i < y.numel(); ++i) {
    data[i] = gradient ? e5m2(data[i]) : e4m3(data[i]);
  }
  return y;
}

at::Tensor scalar(float value) {
  return at::full({}, value, at::kFloat);
}

/// Transformer Engine's update of one operand, as its kernel does it.
struct Reference {
  std::vector<float> history;
  float scale = 1;

  void update(bool most_recent, float largest, int margin) {
    const float last = history[0];
    float amax = 0;
    const size_t length = history.size();
    for (size_t i = 0; i < length; ++i) {
      const float a = i < length - 1 ? history[i + 1] : last;
      amax = std::max(amax, a);
      history[i] = i > 0 ? a : 0;
    }
    amax = most_recent ? last : amax;
    if (std::isfinite(amax) && amax > 0) {
      scale = std::min(
          largest * std::pow(2.0F, static_cast<float>(-margin)) / amax,
          std::numeric_limits<float>::max()
      );
    }
  }
};

struct Layer {
  explicit Layer(const Fp8Spec& spec)
      : builder(store, {.mesh = &mesh, .rules = &rules, .seq = 4, .microbatch = 2, .fp8 = spec})
      , linear(
            builder,
            {.in = {axis::embed, 16}, .outs = {{"a", {axis::mlp, 24}}}, .bias = true, .std = 0.5}
        ) {
    builder.fp8()->allocate(store, at::kCPU);
    gradients.emplace(store, mesh);
  }

  Mesh mesh;
  Rules rules;
  ParameterStore store;
  Builder builder;
  Linear linear;
  std::optional<Gradients> gradients;
};

double relative(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm()).item().toDouble();
}

} // namespace

TEST_CASE("rounding to FP8 is to nearest, ties to even, and saturates: bit for bit") {
  std::mt19937 random(7);
  std::vector<float> values{
      0.0F,
      -0.0F,
      448,
      449,
      464,
      480,
      1e9,
      -1e9,
      57344,
      61440,
      1e-3,
      1e-9,
      std::numeric_limits<float>::infinity(),
      std::numeric_limits<float>::denorm_min()};
  for (int i = 0; i < 20000; ++i) {
    const auto exponent = static_cast<int>(random() % 40) - 22;
    values.push_back(std::ldexp(static_cast<float>(random()) / 4e9F - 0.5F, exponent));
    values.push_back(std::ldexp(static_cast<float>(random() % 256), exponent)); // many ties
  }
  const at::Tensor x = at::tensor(values);
  for (const float scale : {1.0F, 0.3F, 117.0F}) {
    for (const bool gradient : {false, true}) {
      const at::Tensor rounded = ops::fp8_round(x, scalar(scale), gradient);
      CHECK((rounded.scalar_type() == (gradient ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn)));
      CHECK(at::equal(rounded.to(at::kFloat), by_hand(x, scale, gradient)));
      // within range it is LibTorch's own cast
      const at::Tensor scaled = (x * scale).clamp(-ops::fp8_max(gradient), ops::fp8_max(gradient));
      CHECK(at::equal(rounded.view(at::kByte), scaled.to(rounded.scalar_type()).view(at::kByte)));
    }
  }
  const at::Tensor none = at::tensor({std::numeric_limits<float>::quiet_NaN()});
  CHECK(ops::fp8_round(none, scalar(1), false).to(at::kFloat).isnan().all().item().toBool());
}

TEST_CASE("scales map the largest value to the format's largest, less the margin") {
  const auto scale = [](double amax, double former, double most, int64_t margin) {
    return fp8_scale(
               scalar(static_cast<float>(amax)), scalar(static_cast<float>(former)), most, margin
    )
        .item()
        .toDouble();
  };
  CHECK(scale(2, 1, 448, 0) == 224);
  CHECK(scale(2, 1, 448, 2) == 56);
  CHECK(scale(3, 1, 57344, 0) == 57344.0F / 3.0F);
  CHECK(scale(0, 5, 448, 0) == 5);
  CHECK(scale(INFINITY, 5, 448, 0) == 5);
  CHECK(scale(NAN, 5, 448, 0) == 5);
  CHECK(scale(1e-44, 5, 448, 0) == std::numeric_limits<float>::max());
}

TEST_CASE("delayed scaling rolls its history as Transformer Engine does") {
  const Mesh mesh;
  for (const bool most_recent : {false, true}) {
    for (const int64_t length : {1, 3}) {
      Fp8State state({.history = length, .most_recent = most_recent, .margin = 1});
      CHECK(state.add("a.weight") == 0);
      ParameterStore store;
      state.allocate(store, at::kCPU);
      REQUIRE(store.buffers().size() == 1);
      CHECK(store.buffers()[0].piece.name == "fp8.a.weight");
      const at::Tensor& saved = store.buffers()[0].value; // [operands, 1 + history]
      Reference reference{std::vector<float>(static_cast<size_t>(length)), 1};
      for (const float largest : {3.0F, 7.0F, 0.5F, 0.0F, 0.25F, 1e-3F}) {
        for (const float part : {0.5F, 1.0F}) { // two microbatches
          const at::Tensor x = at::full({2, 2, 2}, -largest * part);
          const auto made = state.round(0, Fp8Operand::gradient, x, true, {}, mesh);
          CHECK(made.inverse.item().toFloat() == 1 / reference.scale);
          reference.history[0] = std::max(reference.history[0], largest * part);
        }
        state.update(mesh);
        reference.update(most_recent, 57344, 1);
        CHECK(saved[2][0].item().toFloat() == reference.scale);
        for (int64_t i = 0; i < length; ++i) {
          CHECK(saved[2][1 + i].item().toFloat() == reference.history[static_cast<size_t>(i)]);
        }
        CHECK(saved[0][0].item().toFloat() == 1); // the input was never seen
      }
      (void)state.round(0, Fp8Operand::weight, at::full({1, 1, 1}, 9.0), true, {}, mesh);
      const at::Tensor before = saved.clone();
      state.forget(); // a skipped step
      CHECK(saved[1][1].item().toFloat() == 0);
      CHECK(at::equal(saved[2], before[2]));
    }
  }
}

TEST_CASE("a linear layer in FP8 has the products of its rounded operands") {
  for (const auto& spec : {Fp8Spec{.delayed = false}, Fp8Spec{.delayed = true, .history = 2}}) {
    Layer layer(spec);
    const at::Tensor x = (at::randn({4, 2, 16}) * 3).requires_grad_();
    const at::Tensor dy = at::randn({4, 2, 24}) * 1e-3;
    const Batch batch{.arrays = {}, .samples = {}, .seq = 4, .batch = 2};
    StepContext context(layer.mesh, layer.rules, batch);
    const at::Tensor y = layer.linear.forward(x, context);
    y.backward(dy);

    const Parameter& weight = layer.linear.weight();
    const auto largest = [](const at::Tensor& t) { return t.abs().max().item().toFloat(); };
    const auto scale = [&](const at::Tensor& t, float most) {
      return spec.delayed ? 1.0F : most / largest(t);
    };
    const at::Tensor w = weight.value.detach();
    const float sx = scale(x, 448), sw = scale(w, 448), sy = scale(dy, 57344);
    const auto wide = [](const at::Tensor& t) { return t.detach().to(at::kDouble); };
    const at::Tensor x8 = wide(by_hand(x.detach(), sx, false)) / sx;
    const at::Tensor w8 = wide(by_hand(w, sw, false)) / sw;
    const at::Tensor dy8 = wide(by_hand(dy, sy, true)) / sy;
    CHECK(relative(wide(y), at::matmul(x8, w8.t())) < 1e-6);
    CHECK(relative(wide(x.grad()), at::matmul(dy8, w8)) < 1e-6);
    CHECK(
        relative(wide(weight.main_grad), at::matmul(dy8.view({8, 24}).t(), x8.view({8, 16}))) < 1e-6
    );
    CHECK(relative(wide(y), at::matmul(wide(x), wide(w).t())) > 1e-3); // the rounding is there
    const auto& bias = *layer.store.find("a.bias");
    CHECK(relative(bias.main_grad, dy.view({8, 24}).sum(0)) < 1e-6);
    if (spec.delayed) {
      const at::Tensor& saved = layer.store.buffers()[0].value;
      CHECK(saved[0][1].item().toFloat() == largest(x));
      CHECK(saved[1][1].item().toFloat() == largest(w));
      CHECK(saved[2][1].item().toFloat() == largest(dy));
    }
  }
}

TEST_CASE("embeddings and the output layer stay out of FP8, on the Meta device too") {
  DecoderConfig config;
  config.layers = 2;
  config.hidden = 16;
  config.heads = 2;
  config.vocab = 20;
  const Mesh mesh;
  const Rules rules;
  const Decoder decoder(config, {.vocab = 20, .seq_length = 8});
  Model model(
      decoder,
      {.mesh = &mesh,
       .rules = &rules,
       .device = at::kMeta,
       .dtype = at::kBFloat16,
       .seq = 8,
       .microbatch = 1,
       .fp8 = Fp8Spec{}}
  );
  std::vector<std::string> names;
  for (const auto& buffer : model.parameters().buffers()) {
    names.push_back(buffer.piece.name);
  }
  CHECK(names.size() == 8); // qkv, out, up and down of two layers
  CHECK(names.front() == "fp8.layers.0.attention.q.weight");
  CHECK(names.back() == "fp8.layers.1.mlp.down.weight");
  Gradients gradients(model.parameters(), mesh);
  const auto ids = at::empty({8, 1}, at::TensorOptions().device(at::kMeta).dtype(at::kLong));
  const Batch batch{
      .arrays = {{"tokens", ids}, {"labels", ids}, {"loss_mask", ids.to(at::kFloat)}},
      .samples = {0},
      .seq = 8,
      .batch = 1};
  StepContext context(mesh, rules, batch);
  (void)model.forward(context);
  backward(context.losses().at(0).sum);
  model.end_step(mesh);
  CHECK(model.parameters().buffers()[0].value.is_meta());
}
