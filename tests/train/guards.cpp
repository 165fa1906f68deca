// Loss scaling against Megatron's own table, and what the guards decide.

#include "core/train/guards.hpp"

#include "core/step/loss_scale.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

mh::StepResult result(double loss, double norm = 1) {
  mh::StepResult result;
  result.losses = {{"lm loss", loss}};
  result.gradient_norm = norm;
  return result;
}

/// Losses around 2, none of them a spike.
void feed(mh::Guards& guards, int steps) {
  for (int i = 0; i < steps; ++i) {
    CHECK(guards.judge(result(2 + 0.01 * (i % 5))).verdict == mh::Verdict::update);
  }
}

} // namespace

TEST_CASE("the dynamic loss scale is Megatron's, step by step") {
  // megatron-core 0.16.1, DynamicGradScaler(2^32, min 1, growth 2, back-off 0.5, interval 5,
  // hysteresis 2): overflow, then scale, growth tracker and hysteresis after the step
  struct Row {
    bool overflow;
    double scale;
    int64_t growth, hysteresis;
  };

  static constexpr std::array<Row, 18> kRows{{
      {true, 4294967296, 0, 1},
      {true, 2147483648, 0, 0},
      {true, 1073741824, 0, -1},
      {false, 1073741824, 1, -1},
      {false, 1073741824, 2, -1},
      {false, 1073741824, 3, -1},
      {false, 1073741824, 4, -1},
      {false, 2147483648, 0, 2},
      {true, 2147483648, 0, 1},
      {false, 2147483648, 1, 1},
      {false, 2147483648, 2, 1},
      {false, 2147483648, 3, 1},
      {false, 2147483648, 4, 1},
      {false, 4294967296, 0, 2},
      {false, 4294967296, 1, 2},
      {true, 4294967296, 0, 1},
      {true, 2147483648, 0, 0},
      {true, 1073741824, 0, -1},
  }};
  mh::Recipe::Fp16 options;
  options.window = 5;
  mh::LossScale scale(options);
  CHECK(scale.value() == 4294967296);
  mh::LossScale resumed(options);
  for (size_t i = 0; i < kRows.size(); ++i) {
    CAPTURE(i);
    for (auto* each : {&scale, &resumed}) {
      each->update(kRows[i].overflow);
      CHECK(each->state().scale == kRows[i].scale);
      CHECK(each->state().growth == kRows[i].growth);
      CHECK(each->state().hysteresis == kRows[i].hysteresis);
    }
    const auto saved = resumed.state();
    resumed = mh::LossScale(options);
    resumed.restore(saved);
  }
}

TEST_CASE("a loss scale has a floor, and a constant one never moves") {
  mh::Recipe::Fp16 options;
  options.initial_scale = 4;
  options.hysteresis = 1;
  mh::LossScale low(options);
  CHECK_FALSE(low.lowest());
  low.update(true);
  low.update(true);
  CHECK(low.value() == 1);
  CHECK(low.lowest());
  low.update(true);
  CHECK(low.value() == 1);
  mh::LossScale constant({.loss_scale = 128, .window = 1});
  constant.update(true);
  constant.update(false);
  CHECK(constant.value() == 128);
  CHECK(constant.lowest());
}

TEST_CASE("NaN and Inf: stop, skip a number of steps in a row, or rewind a number of times") {
  mh::Recipe recipe;
  {
    mh::Guards guards(recipe);
    const auto judged = guards.judge(result(kNan));
    CHECK(judged.verdict == mh::Verdict::stop);
    CHECK(judged.why == "the lm loss is nan");
    CHECK(guards.judge(result(2, kInf)).why == "the norm of the gradients is infinite");
  }
  recipe.guards.nan = "skip";
  recipe.guards.skips = 3;
  {
    mh::Guards guards(recipe);
    for (int i = 0; i < 3; ++i) {
      CHECK(guards.judge(result(kNan)).verdict == mh::Verdict::skip);
    }
    CHECK(guards.judge(result(2)).verdict == mh::Verdict::update);
    for (int i = 0; i < 3; ++i) {
      CHECK(guards.judge(result(2, kNan)).verdict == mh::Verdict::skip);
    }
    const auto last = guards.judge(result(kNan));
    CHECK(last.verdict == mh::Verdict::stop);
    CHECK(last.why == "the lm loss is nan, after 3 skipped steps (guards.skips)");
    CHECK(guards.skipped() == 6);
  }
  recipe.guards.nan = "rewind";
  recipe.guards.rewinds = 2;
  mh::Guards guards(recipe);
  for (int i = 0; i < 2; ++i) {
    CHECK(guards.judge(result(kInf)).verdict == mh::Verdict::rewind);
    guards.rewound({}, 8 * (i + 1));
    CHECK(guards.skipped_samples() == 8 * (i + 1));
  }
  const auto last = guards.judge(result(kInf));
  CHECK(last.verdict == mh::Verdict::stop);
  CHECK(last.why == "the lm loss is infinite, after 2 rewinds (guards.rewinds)");
}

TEST_CASE("a router whose logits are NaN is named") {
  mh::Guards guards(mh::Recipe{});
  auto bad = result(kNan);
  bad.metrics = {
      {"layers.0.mlp.router.tokens_per_expert", {3, 5}},
      {"layers.1.mlp.router.tokens_per_expert", {kNan, kNan}},
      {"layers.2.mlp.router.tokens_per_expert", {kNan, kNan}}};
  CHECK(
      guards.judge(bad).why ==
      "the lm loss is nan, and so are router logits, first those of layers.1.mlp"
  );
}

TEST_CASE("spikes are losses far above the median of those before, and are not remembered") {
  mh::Recipe recipe;
  mh::Guards careless(recipe);
  feed(careless, 40);
  CHECK(careless.judge(result(50)).verdict == mh::Verdict::update); // off unless asked for

  recipe.guards.spike = "skip";
  recipe.guards.spike_z = 6;
  recipe.guards.window = 20;
  mh::Guards guards(recipe);
  CHECK(guards.judge(result(90)).verdict == mh::Verdict::update); // nothing to compare with
  feed(guards, 40);
  for (int i = 0; i < 15; ++i) {
    const auto judged = guards.judge(result(2.5));
    CHECK(judged.verdict == mh::Verdict::skip);
    CHECK(judged.why.find("the lm loss is 2.5000, ") == 0);
  }
  CHECK(guards.judge(result(1)).verdict == mh::Verdict::update); // far below is fine
  // a resumed run judges alike
  mh::Guards resumed(recipe);
  resumed.restore(guards.state());
  CHECK(resumed.state().losses == guards.state().losses);
  CHECK(resumed.state().losses.size() == 20);
  CHECK(resumed.judge(result(2.5)).why == guards.judge(result(2.5)).why);
  CHECK(resumed.skipped() == guards.skipped());
}

TEST_CASE("float16 overflows lower the scale and skip, at the lowest scale only so often") {
  mh::Recipe recipe;
  recipe.precision = "fp16";
  recipe.fp16.initial_scale = 8;
  recipe.fp16.min_scale = 2;
  recipe.fp16.hysteresis = 1;
  recipe.guards.skips = 2;
  mh::Guards guards(recipe);
  CHECK(guards.loss_scale() == 8);
  for (const double expected : {4.0, 2.0, 2.0, 2.0}) {
    const auto judged = guards.judge(result(2, kInf));
    CHECK(judged.verdict == mh::Verdict::skip);
    CHECK(judged.overflow);
    CHECK(guards.loss_scale() == expected);
  }
  const auto last = guards.judge(result(2, kInf));
  CHECK(last.verdict == mh::Verdict::stop);
  CHECK(last.why.find("the gradients overflow at loss scale 2") == 0);
  CHECK(guards.judge(result(kNan)).why == "the lm loss is nan"); // no scale mends that
  CHECK(
      guards.no_update_text(4) ==
      "no step changed the weights: all 4 steps of the run were skipped; the loss scale fell from 8 "
      "to 2 on the way: run longer, or begin at a lower fp16.initial_scale"
  );
}
