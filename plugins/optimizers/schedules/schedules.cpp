#define MH_PLUGIN_LICENSE "Apache-2.0"
#include <megahost/error.hpp>
#include <megahost/lr_schedule.hpp>
#include <megahost/plugin.hpp>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <string>

namespace {

/// Warm-up in a straight line from `warmup_init` to the optimizer's lr, which ends at W, then the
/// schedule's own decay from there to `min_lr`, which ends at D, then `min_lr`.
///
///   n <= W   init + (lr - init) n / W
///   n <= D   min + (lr - min) c(r),  r = (n - W) / (D - W)
///   n > D    min
///
/// n counts updates, or samples where a length is given in samples.
///
/// Source:  Megatron Core, optimizer_param_scheduler.py
struct Config {
  std::optional<int64_t> warmup_iters, warmup_samples;
  std::optional<double> warmup_share;
  double warmup_init = 0;
};

struct DecayConfig : Config {
  std::optional<int64_t> decay_iters, decay_samples;
  double min_lr = 0;
};

struct WsdConfig : DecayConfig {
  std::string cooldown = "minus_sqrt";
  std::optional<int64_t> cooldown_iters, cooldown_samples;
  double cooldown_share = 0.1;
};

std::string text(double value) {
  return mh::to_text(mh::Value(value));
}

template <class C>
void warmup_fields(mh::Fields<C>& f) {
  f.add("warmup_iters", &C::warmup_iters, "steps of linear warm-up; 0 if absent").at_least(0);
  f.add("warmup_samples", &C::warmup_samples, "the same in samples").at_least(0);
  f.add("warmup_share", &C::warmup_share, "the same as a share of the schedule's length")
      .at_least(0)
      .below(1);
  f.add("warmup_init", &C::warmup_init, "learning rate of the first step under warm-up")
      .at_least(0);
  f.check("warmup_samples", [](const C& c) -> std::string {
    return c.warmup_iters && c.warmup_samples ? "warm-up is given in iterations and in samples: "
                                                "keep warmup_iters or warmup_samples"
                                              : "";
  });
  f.check("warmup_share", [](const C& c) -> std::string {
    return c.warmup_share && (c.warmup_iters || c.warmup_samples)
               ? "warm-up is given as a share and as a number: keep one of them"
               : "";
  });
}

template <class C>
void decay_fields(mh::Fields<C>& f) {
  warmup_fields(f);
  f.add("decay_iters", &C::decay_iters, "step at which min_lr is reached; the run's last if absent")
      .at_least(1);
  f.add("decay_samples", &C::decay_samples, "the same in samples").at_least(1);
  f.add("min_lr", &C::min_lr, "learning rate at the end and after it").at_least(0);
  f.check("decay_samples", [](const C& c) -> std::string {
    return c.decay_iters && c.decay_samples
               ? "decay is given in iterations and in samples: keep decay_iters or decay_samples"
               : "";
  });
  f.check("warmup_iters", [](const C& c) -> std::string {
    const bool wrong = c.decay_iters && c.warmup_iters && *c.warmup_iters >= *c.decay_iters;
    return wrong ? "warm-up of " + std::to_string(*c.warmup_iters) +
                       " steps does not end before the decay at step " +
                       std::to_string(*c.decay_iters)
                 : "";
  });
}

/// Lengths in one unit: samples if any of them, or the run's, is given in samples.
class Clock {
public:
  Clock(bool samples, const mh::LrSchedule::Args& args)
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
  using Config = ::Config;

  static void fields(mh::Fields<Config>& f) { warmup_fields(f); }

  Warmup(const ::Config& config, const Args& args)
      : Warmup(config, args, Clock(config.warmup_samples.has_value(), args), std::nullopt) {}

  [[nodiscard]] double lr(const mh::Completed& completed) const override {
    const double n = clock_.now(completed);
    return warmup_ > 0 && n <= warmup_ ? init_ + (peak_ - init_) * n / warmup_ : after(n);
  }

protected:
  /// `end` is the schedule's length, of which warm-up may be a share.
  Warmup(const ::Config& config, const Args& args, const Clock& clock, std::optional<double> end)
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

  Clock clock_;
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
      : Decay(config, args, Clock(samples || config.warmup_samples || config.decay_samples, args)) {
  }

  [[nodiscard]] double after(double n) const final { return n > end_ ? min_ : decayed(n); }

  /// From the end of warm-up to the schedule's end.
  [[nodiscard]] virtual double decayed(double n) const {
    return towards_min(share((n - warmup_) / (end_ - warmup_)));
  }

  /// What is left of the way from lr to min_lr after the part `r` of the decay.
  [[nodiscard]] virtual double share(double r) const = 0;

  [[nodiscard]] double towards_min(double share) const { return min_ + (peak_ - min_) * share; }

  double min_, end_;

private:
  Decay(const DecayConfig& config, const Args& args, const Clock& clock)
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

  static double length(const DecayConfig& config, const Clock& clock) {
    return clock.length("decay", config.decay_iters, config.decay_samples, clock.run());
  }
};

class Linear : public Decay {
public:
  using Decay::Decay;

protected:
  [[nodiscard]] double share(double r) const override { return 1 - r; }
};

double half_cosine(double r) {
  return 0.5 * (std::cos(std::numbers::pi * r) + 1);
}

class Cosine : public Decay {
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

  static void fields(mh::Fields<Config>& f) {
    decay_fields(f);
    f.add("cooldown", &Config::cooldown, "form of the way down")
        .one_of({"linear", "exponential", "cosine", "minus_sqrt"});
    f.add("cooldown_iters", &Config::cooldown_iters, "steps of the way down at the end")
        .at_least(1);
    f.add("cooldown_samples", &Config::cooldown_samples, "the same in samples").at_least(1);
    f.add("cooldown_share", &Config::cooldown_share, "the same as a share, where neither is given")
        .range(0, 1);
    f.check("cooldown_samples", [](const Config& c) -> std::string {
      return c.cooldown_iters && c.cooldown_samples
                 ? "the way down is given in iterations and in samples: keep cooldown_iters or "
                   "cooldown_samples"
                 : "";
    });
  }

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
  r.add<Warmup>("constant", "warm-up, then the same rate for ever");
  r.add<Cosine>("cosine", "warm-up, then half a cosine down to min_lr");
  r.add<Linear>("linear", "warm-up, then a straight line down to min_lr");
  r.add<InverseSquareRoot>("inverse_sqrt", "warm-up, then one over the root of the steps");
  r.add<Wsd>("wsd", "warm-up, then the same rate, then down to min_lr at the end");
});
