#pragma once
/// The keys of the learning-rate schedules, and the combinations that are refused; without
/// LibTorch.

#include <megahost/conditions.hpp>
#include <megahost/model_scale.hpp>
#include <megahost/schema.hpp>

#include <algorithm>
#include <optional>
#include <string>
#include <type_traits>

namespace schedules {

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
struct WarmupConfig {
  std::optional<int64_t> warmup_iters, warmup_samples;
  std::optional<double> warmup_share;
  double warmup_init = 0;
};

struct DecayConfig : WarmupConfig {
  std::optional<int64_t> decay_iters, decay_samples;
  double min_lr = 0;
};

struct WsdConfig : DecayConfig {
  std::string cooldown = "minus_sqrt";
  std::optional<int64_t> cooldown_iters, cooldown_samples;
  double cooldown_share = 0.1;
};

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

inline void wsd_fields(mh::Fields<WsdConfig>& f) {
  decay_fields(f);
  f.add("cooldown", &WsdConfig::cooldown, "form of the way down")
      .one_of({"linear", "exponential", "cosine", "minus_sqrt"});
  f.add("cooldown_iters", &WsdConfig::cooldown_iters, "steps of the way down at the end")
      .at_least(1);
  f.add("cooldown_samples", &WsdConfig::cooldown_samples, "the same in samples").at_least(1);
  f.add("cooldown_share", &WsdConfig::cooldown_share, "the same as a share, where neither is given")
      .range(0, 1);
  f.check("cooldown_samples", [](const WsdConfig& c) -> std::string {
    return c.cooldown_iters && c.cooldown_samples
               ? "the way down is given in iterations and in samples: keep cooldown_iters or "
                 "cooldown_samples"
               : "";
  });
}

/// A length is counted in one unit, which is that of the run.
inline void one_unit(mh::Conditions& c, const std::string& iters, const std::string& samples) {
  if (!c.sound({iters, samples})) {
    return;
  }
  const bool by_iters = c.integer(iters) > 0, by_samples = c.integer(samples) > 0;
  if (by_samples && c.has("train.iters") && !c.has("train.samples")) {
    c.report(
        {samples},
        samples + " counts sequences but train.iters counts optimizer steps",
        "give " + iters + ", or the run's length as train.samples"
    );
  } else if (by_iters && c.has("train.samples") && !c.has("train.iters")) {
    c.report(
        {iters},
        iters + " counts optimizer steps but train.samples counts sequences",
        "give " + samples + ", or the run's length as train.iters"
    );
  }
}

/// Warm-up ends before the decay does.
inline void warmup_first(
    mh::Conditions& c, const std::string& warmup, const std::string& decay, const std::string& run
) {
  if (!c.sound({warmup, decay, run})) {
    return;
  }
  const std::string& end = c.integer(decay) > 0 ? decay : run;
  if (c.integer(warmup) > 0 && c.integer(end) > 0 && c.integer(warmup) >= c.integer(end)) {
    c.report(
        {warmup, end},
        warmup + " " + c.text(c.integer(warmup)) + " is not below " + end + " " +
            c.text(c.integer(end)),
        "the rate rises during warm-up and decays from there to the end"
    );
  }
}

inline void conditions(mh::Conditions& c) {
  one_unit(c, "lr_schedule.warmup_iters", "lr_schedule.warmup_samples");
  one_unit(c, "lr_schedule.decay_iters", "lr_schedule.decay_samples");
  one_unit(c, "lr_schedule.cooldown_iters", "lr_schedule.cooldown_samples");
  if (c.sound({"lr_schedule.min_lr", "optimizer.lr"}) &&
      c.number("lr_schedule.min_lr") > c.number("optimizer.lr")) {
    c.report(
        {"lr_schedule.min_lr", "optimizer.lr"},
        "lr_schedule.min_lr " + mh::to_text(c.number("lr_schedule.min_lr")) +
            " is above optimizer.lr " + mh::to_text(c.number("optimizer.lr")) +
            ", expected at most that",
        "the rate falls from optimizer.lr to lr_schedule.min_lr"
    );
  }
  warmup_first(c, "lr_schedule.warmup_iters", "lr_schedule.decay_iters", "train.iters");
  warmup_first(c, "lr_schedule.warmup_samples", "lr_schedule.decay_samples", "train.samples");
}

/// Lengths in a shorter run: warm-up and the way down are a tenth of it, the decay all of it.
template <class C>

requires std::is_base_of_v<WarmupConfig, C> mh::Table
scaled(const C& whole, const mh::ModelScale& to) {
  const int64_t tenth = std::min(std::max<int64_t>(1, to.length / 10), to.length - 1);
  mh::Table small;
  const auto set = [&small](const char* key, const std::optional<int64_t>& given, int64_t length) {
    if (given.value_or(0) > 0) {
      small.set(key, length);
    }
  };
  set("warmup_iters", whole.warmup_iters, tenth);
  set("warmup_samples", whole.warmup_samples, tenth);
  if constexpr (std::is_base_of_v<DecayConfig, C>) {
    set("decay_iters", whole.decay_iters, to.length);
    set("decay_samples", whole.decay_samples, to.length);
  }
  if constexpr (std::is_base_of_v<WsdConfig, C>) {
    set("cooldown_iters", whole.cooldown_iters, tenth);
    set("cooldown_samples", whole.cooldown_samples, tenth);
  }
  return small;
}

} // namespace schedules
