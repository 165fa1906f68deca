#define MH_PLUGIN_LICENSE "Apache-2.0"
#include <megahost/error.hpp>
#include <megahost/lr_schedule.hpp>
#include <megahost/plugin.hpp>

#include <cmath>
#include <numbers>
#include <optional>
#include <string>

namespace {

/// Warm-up in a straight line from `warmup_init` to the optimizer's lr over W updates, then the
/// schedule's own decay from there to `min_lr` at update D, then `min_lr`.
///
///   n <= W   init + (lr - init) n / W
///   n <= D   min + (lr - min) c(r),  r = (n - W) / (D - W)
///   n > D    min
struct Config {
  std::optional<int64_t> warmup_iters, warmup_samples;
  double warmup_init = 0;

  [[nodiscard]] double warmup(int64_t global_batch) const {
    return warmup_samples ? static_cast<double>(*warmup_samples) / static_cast<double>(global_batch)
                          : static_cast<double>(warmup_iters.value_or(0));
  }
};

struct DecayConfig : Config {
  std::optional<int64_t> decay_iters, decay_samples;
  double min_lr = 0;
};

template <class C>
void warmup_fields(mh::Fields<C>& f) {
  f.add("warmup_iters", &C::warmup_iters, "steps of linear warm-up; 0 if absent").at_least(0);
  f.add("warmup_samples", &C::warmup_samples, "the same in samples").at_least(0);
  f.add("warmup_init", &C::warmup_init, "learning rate of the first step under warm-up")
      .at_least(0);
  f.check("warmup_samples", [](const C& c) -> std::string {
    return c.warmup_iters && c.warmup_samples ? "warm-up is given in iterations and in samples: "
                                                "keep warmup_iters or warmup_samples"
                                              : "";
  });
}

/// Warm-up, and what follows it is constant.
class Warmup : public mh::LrSchedule {
public:
  Warmup(const ::Config& config, const Args& args)
      : peak_(args.lr)
      , init_(config.warmup_init)
      , steps_(config.warmup(args.global_batch)) {
    if (init_ > peak_) {
      throw mh::Error(
          "lr_schedule.warmup_init " + text(init_) + " is above optimizer.lr " + text(peak_),
          "lower warmup_init: warm-up climbs to optimizer.lr"
      );
    }
  }

  [[nodiscard]] double lr(int64_t completed) const override {
    const auto n = static_cast<double>(completed);
    return steps_ > 0 && n <= steps_ ? init_ + (peak_ - init_) * n / steps_ : after(n);
  }

protected:
  static std::string text(double value) { return mh::to_text(mh::Value(value)); }

  [[nodiscard]] virtual double after(double) const { return peak_; }

  double peak_, init_, steps_;
};

class Constant : public Warmup {
public:
  using Config = ::Config;

  static void fields(mh::Fields<Config>& f) { warmup_fields(f); }

  using Warmup::Warmup;
};

class Decay : public Warmup {
public:
  using Config = DecayConfig;

  static void fields(mh::Fields<Config>& f) {
    warmup_fields(f);
    f.add(
         "decay_iters",
         &Config::decay_iters,
         "step at which min_lr is reached; train.iters if absent"
    )
        .at_least(1);
    f.add("decay_samples", &Config::decay_samples, "the same in samples").at_least(1);
    f.add("min_lr", &Config::min_lr, "learning rate at the end and after it").at_least(0);
    f.check("decay_samples", [](const Config& c) -> std::string {
      return c.decay_iters && c.decay_samples
                 ? "decay is given in iterations and in samples: keep decay_iters or decay_samples"
                 : "";
    });
    f.check("warmup_iters", [](const Config& c) -> std::string {
      const bool wrong = c.decay_iters && c.warmup_iters && *c.warmup_iters >= *c.decay_iters;
      return wrong ? "warm-up of " + std::to_string(*c.warmup_iters) +
                         " steps does not end before the decay at step " +
                         std::to_string(*c.decay_iters)
                   : "";
    });
  }

  Decay(const Config& config, const Args& args)
      : Warmup(config, args)
      , min_(config.min_lr) {
    end_ = config.decay_samples
               ? static_cast<double>(*config.decay_samples) / static_cast<double>(args.global_batch)
               : static_cast<double>(config.decay_iters.value_or(args.train_iters));
    if (min_ > peak_) {
      throw mh::Error(
          "lr_schedule.min_lr " + text(min_) + " is above optimizer.lr " + text(peak_),
          "lower lr_schedule.min_lr or raise optimizer.lr"
      );
    }
    if (steps_ > 0 && steps_ >= end_) {
      throw mh::Error(
          "lr_schedule warms up for " + text(steps_) + " steps, but decays until step " +
              text(end_),
          "shorten the warm-up, or lengthen decay_iters (train.iters if it is absent)"
      );
    }
  }

protected:
  [[nodiscard]] double after(double n) const final {
    if (n > end_) {
      return min_;
    }
    const double length = end_ - steps_;
    return min_ + (peak_ - min_) * share(length > 0 ? (n - steps_) / length : 0);
  }

  /// What is left of the way from lr to min_lr after the part `r` of the decay.
  [[nodiscard]] virtual double share(double r) const = 0;

private:
  double min_, end_ = 0;
};

class Linear : public Decay {
public:
  using Decay::Decay;

protected:
  [[nodiscard]] double share(double r) const override { return 1 - r; }
};

class Cosine : public Decay {
public:
  using Decay::Decay;

protected:
  [[nodiscard]] double share(double r) const override {
    return 0.5 * (std::cos(std::numbers::pi * r) + 1);
  }
};

} // namespace

MH_PLUGIN("org.megahost.schedules", "0.1.0", "learning-rate schedules", [](mh::Registry& r) {
  r.add<Constant>("constant", "warm-up, then the same rate for ever");
  r.add<Cosine>("cosine", "warm-up, then half a cosine down to min_lr");
  r.add<Linear>("linear", "warm-up, then a straight line down to min_lr");
});
