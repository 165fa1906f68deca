#include "core/train/guards.hpp"

#include "core/base/number_text.hpp"
#include "core/nn/router_parts.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace mh {

namespace {

/// ", and so are the router logits of layers.0.mlp"; of several layers the first.
std::string bad_router(const StepResult& result) {
  const std::string ending = std::string(".router.") + kTokensPerExpert;
  for (const auto& metric : result.metrics) {
    const auto& values = metric.values;
    if (metric.name.ends_with(ending) &&
        std::any_of(values.begin(), values.end(), [](double v) { return std::isnan(v); })) {
      return ", and so are router logits, first those of " +
             metric.name.substr(0, metric.name.size() - ending.size());
    }
  }
  return "";
}

bool has_finite_losses(const StepResult& result) {
  return std::all_of(result.losses.begin(), result.losses.end(), [](const auto& loss) {
    return std::isfinite(loss.value);
  });
}

} // namespace

std::string bad_numbers(const StepResult& result) {
  for (const auto& loss : result.losses) {
    if (!std::isfinite(loss.value)) {
      return "the " + loss.name + " is " + (std::isnan(loss.value) ? "nan" : "infinite") +
             bad_router(result);
    }
  }
  return std::string("the norm of the gradients is ") +
         (std::isnan(result.gradient_norm) ? "nan" : "infinite") + bad_router(result);
}

Guards::Guards(const Recipe& recipe)
    : options_(recipe.guards)
    , losses_(static_cast<size_t>(recipe.guards.window)) {
  if (recipe.precision == "fp16") {
    scale_.emplace(recipe.fp16);
  }
}

std::string Guards::doubt(const StepResult& result) const {
  if (in_a_row_ > 0) {
    return "";
  }
  const bool sound = has_finite_losses(result);
  if (!result.finite()) {
    return scale_ && sound ? "" : bad_numbers(result);
  }
  return spike(result);
}

/// A sentence on a loss that is far above those before it; empty if it is not.
std::string Guards::spike(const StepResult& result) const {
  if (options_.spike == "off" || result.losses.empty()) {
    return "";
  }
  const auto& loss = result.losses.front();
  const auto z = losses_.score(loss.value);
  return z && *z > options_.spike_z
             ? formatted(
                   "the %s is %.4f, %.1f robust standard deviations above those before it",
                   loss.name.c_str(),
                   loss.value,
                   *z
               )
             : "";
}

Judgement Guards::judge(const StepResult& result) {
  if (!result.finite()) {
    return scale_ && has_finite_losses(result) ? overflow()
                                               : act(options_.nan, bad_numbers(result));
  }
  if (options_.spike != "off" && !result.losses.empty()) {
    if (std::string why = spike(result); !why.empty()) {
      return act(options_.spike, std::move(why));
    }
    (void)losses_.add(result.losses.front().value);
  }
  in_a_row_ = 0;
  if (scale_) {
    scale_->update(/*overflow=*/false);
  }
  return {};
}

Judgement Guards::act(const std::string& action, std::string why) {
  if (action == "skip") {
    return skip(std::move(why), /*counts=*/true);
  }
  if (action == "rewind" && rewinds_ < options_.rewinds) {
    return {.verdict = Verdict::rewind, .why = std::move(why)};
  }
  if (action == "rewind") {
    why += formatted(", after %lld rewinds (guards.rewinds)", static_cast<long long>(rewinds_));
  }
  return {.verdict = Verdict::stop, .why = std::move(why)};
}

Judgement Guards::overflow() {
  const double scale = scale_->value();
  const bool lowest = scale_->lowest();
  scale_->update(/*overflow=*/true);
  auto judgement =
      skip(formatted("the gradients overflow at loss scale %.0f", scale), /*counts=*/lowest);
  judgement.overflow = judgement.verdict == Verdict::skip;
  return judgement;
}

Judgement Guards::skip(std::string why, bool counts) {
  if (counts && in_a_row_ >= options_.skips) {
    why +=
        formatted(", after %lld skipped steps (guards.skips)", static_cast<long long>(in_a_row_));
    return {.verdict = Verdict::stop, .why = std::move(why)};
  }
  in_a_row_ += counts ? 1 : 0;
  ++skipped_;
  return {.verdict = Verdict::skip, .why = std::move(why)};
}

void Guards::rewound(const GuardState& saved, int64_t skipped_samples) {
  const int64_t rewinds = rewinds_ + 1;
  restore(saved);
  rewinds_ = rewinds;
  skipped_samples_ = skipped_samples;
}

std::string Guards::no_update_text(int64_t steps) const {
  std::string text =
      "no step changed the weights: all " + counted(steps, "step") + " of the run were skipped";
  if (!scale_) {
    return text + " (guards)";
  }
  if (const auto& constant = scale_->options().loss_scale) {
    return text + formatted("; try a lower fp16.loss_scale than %.6g", *constant);
  }
  return text + formatted(
                    "; the loss scale fell from %.6g to %.6g on the way: run longer, or begin at a "
                    "lower fp16.initial_scale",
                    scale_->options().initial_scale,
                    scale_->value()
                );
}

GuardState Guards::state() const {
  return {
      .loss_scale = scale_ ? std::optional(scale_->state()) : std::nullopt,
      .losses = losses_.values(),
      .skipped = skipped_,
      .rewinds = rewinds_,
      .skipped_samples = skipped_samples_};
}

void Guards::restore(const GuardState& state) {
  if (scale_ && state.loss_scale) {
    scale_->restore(*state.loss_scale);
  }
  losses_ = RobustZ(static_cast<size_t>(options_.window));
  for (const double loss : state.losses) {
    (void)losses_.add(loss);
  }
  skipped_ = state.skipped;
  in_a_row_ = 0;
  rewinds_ = state.rewinds;
  skipped_samples_ = state.skipped_samples;
}

} // namespace mh
