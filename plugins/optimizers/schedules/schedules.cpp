#define MH_PLUGIN_LICENSE "Apache-2.0"
#include "keys.hpp"

#include <megahost/error.hpp>
#include <megahost/lr_schedule.hpp>
#include <megahost/plugin.hpp>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <string>

namespace {

using namespace schedules;

std::string text(double value) {
  return mh::to_text(mh::Value(value));
}

/// Lengths in one unit: samples if any of them, or the run's, is given in samples.
class RunLength {
public:
  RunLength(bool samples, const mh::LrSchedule::Args& args)
      : samples_(samples || args.train_samples > 0)
      , run_(static_cast<double>(samples_ ? args.train_samples : args.train_iters)) {}

  [[nodiscard]] double now(const mh::Completed& completed) const {
    return static_cast<double>(samples_ ? completed.samples : completed.updates);
  }

  /// The given one of the lengths in updates and in samples; `absent` if none is.
  [[nodiscard]] double length(
      const char* what, std::optional<int64_t> iters, std::optional<int64_t> samples, double absent
  ) const {
    if (samples_ && iters.value_or(0) > 0) {
      throw mh::Error(
          std::string("lr_schedule.") + what +
              "_iters counts steps where other lengths count samples",
          std::string("give ") + what + "_samples, or all lengths in steps"
      );
    }
    const auto given = samples_ ? samples : iters;
    return given ? static_cast<double>(*given) : absent;
  }

  /// The length of the run; 0 if it is not known in this unit.
  [[nodiscard]] double run() const { return run_; }

  [[nodiscard]] const char* unit() const { return samples_ ? "samples" : "steps"; }

private:
  bool samples_;
  double run_;
};

/// Warm-up, and what follows it is constant.
class Warmup : public mh::LrSchedule {
public:
  using Config = schedules::WarmupConfig;

  static void fields(mh::Fields<Config>& f) { warmup_fields(f); }

  static void conditions(mh::Conditions& c) { schedules::conditions(c); }

  Warmup(const schedules::WarmupConfig& config, const Args& args)
      : Warmup(config, args, RunLength(config.warmup_samples.has_value(), args), std::nullopt) {}

  [[nodiscard]] double lr(const mh::Completed& completed) const override {
    const double n = clock_.now(completed);
    return warmup_ > 0 && n <= warmup_ ? init_ + (peak_ - init_) * n / warmup_ : after(n);
  }

protected:
  /// `end` is the schedule's length, of which warm-up may be a share.
  Warmup(
      const schedules::WarmupConfig& config,
      const Args& args,
      const RunLength& clock,
      std::optional<double> end
  )
      : clock_(clock)
      , peak_(args.lr)
      , init_(config.warmup_init)
      , warmup_(clock.length(
            "warmup",
            config.warmup_iters,
            config.warmup_samples,
            config.warmup_share.value_or(0) * end.value_or(clock.run())
        )) {
    if (init_ > peak_) {
      throw mh::Error(
          "lr_schedule.warmup_init " + text(init_) + " is above optimizer.lr " + text(peak_),
          "lower warmup_init: warm-up climbs to optimizer.lr"
      );
    }
  }

  [[nodiscard]] virtual double after(double) const { return peak_; }

  RunLength clock_;
  double peak_, init_, warmup_;
};

class Decay : public Warmup {
public:
  using Config = DecayConfig;

  static void fields(mh::Fields<Config>& f) { decay_fields(f); }

  Decay(const Config& config, const Args& args)
      : Decay(config, args, false) {}

protected:
  Decay(const DecayConfig& config, const Args& args, bool samples)
      : Decay(
            config, args, RunLength(samples || config.warmup_samples || config.decay_samples, args)
        ) {}

  [[nodiscard]] double after(double n) const final { return n > end_ ? min_ : decayed(n); }

  /// From the end of warm-up to the schedule's end.
  [[nodiscard]] virtual double decayed(double n) const {
    return towards_min(share((n - warmup_) / (end_ - warmup_)));
  }

  /// The remaining share of the way from lr to min_lr after the part `r` of the decay.
  [[nodiscard]] virtual double share(double r) const = 0;

  [[nodiscard]] double towards_min(double share) const { return min_ + (peak_ - min_) * share; }

  double min_, end_;

private:
  Decay(const DecayConfig& config, const Args& args, const RunLength& clock)
      : Warmup(config, args, clock, length(config, clock))
      , min_(config.min_lr)
      , end_(length(config, clock)) {
    if (min_ > peak_) {
      throw mh::Error(
          "lr_schedule.min_lr " + text(min_) + " is above optimizer.lr " + text(peak_),
          "lower lr_schedule.min_lr or raise optimizer.lr"
      );
    }
    if (warmup_ >= end_) {
      throw mh::Error(
          "lr_schedule warms up for " + text(warmup_) + " " + clock.unit() + ", but decays until " +
              text(end_),
          "shorten the warm-up, or lengthen the decay (the run's length if it is absent)"
      );
    }
  }

  static double length(const DecayConfig& config, const RunLength& clock) {
    return clock.length("decay", config.decay_iters, config.decay_samples, clock.run());
  }
};

class LinearDecay : public Decay {
public:
  using Decay::Decay;

protected:
  [[nodiscard]] double share(double r) const override { return 1 - r; }
};

double half_cosine(double r) {
  return 0.5 * (std::cos(std::numbers::pi * r) + 1);
}

class CosineDecay : public Decay {
public:
  using Decay::Decay;

protected:
  [[nodiscard]] double share(double r) const override { return half_cosine(r); }
};

/// lr sqrt(W / n), not below min_lr. Without warm-up W is 1.
class InverseSquareRoot : public Decay {
public:
  using Decay::Decay;

protected:
  [[nodiscard]] double decayed(double n) const override {
    return std::max(min_, peak_ * std::sqrt(std::max(warmup_, 1.0) / std::max(n, 1.0)));
  }

  [[nodiscard]] double share(double) const override { return 1; }
};

/// Warm-up, stable, decay: lr until D - A, then down to min_lr in one of four ways.
///
/// Source:  arXiv:2404.06395; minus_sqrt: arXiv:2405.18392
class Wsd : public Decay {
public:
  using Config = WsdConfig;

  static void fields(mh::Fields<Config>& f) { wsd_fields(f); }

  Wsd(const Config& config, const Args& args)
      : Decay(config, args, config.cooldown_samples.has_value())
      , form_(config.cooldown)
      , length_(clock_.length(
            "cooldown", config.cooldown_iters, config.cooldown_samples, config.cooldown_share * end_
        )) {
    if (warmup_ + length_ > end_) {
      throw mh::Error(
          "lr_schedule warms up for " + text(warmup_) + " " + clock_.unit() +
              " and cools down for " + text(length_) + ", in all more than " + text(end_),
          "shorten one of them, or lengthen the decay (the run's length if it is absent)"
      );
    }
  }

protected:
  [[nodiscard]] double decayed(double n) const override {
    const double start = end_ - length_;
    return n <= start ? peak_ : towards_min(share((n - start) / length_));
  }

  [[nodiscard]] double share(double r) const override {
    return form_ == "linear"        ? 1 - r
           : form_ == "cosine"      ? half_cosine(r)
           : form_ == "exponential" ? 2 * std::pow(0.5, r) - 1
                                    : 1 - std::sqrt(r);
  }

private:
  std::string form_;
  double length_;
};

} // namespace

MH_PLUGIN("org.megahost.schedules", "0.1.0", "learning-rate schedules", [](mh::Registry& r) {
  r.add<Warmup>("constant", "warm-up, then the same rate forever");
  r.add<CosineDecay>("cosine", "warm-up, then half a cosine down to min_lr");
  r.add<LinearDecay>("linear", "warm-up, then a straight line down to min_lr");
  r.add<InverseSquareRoot>("inverse_sqrt", "warm-up, then one over the root of the steps");
  r.add<Wsd>("wsd", "warm-up, then the same rate, then down to min_lr at the end");
});
