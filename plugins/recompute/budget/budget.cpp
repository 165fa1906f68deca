#define MH_PLUGIN_LICENSE "Apache-2.0"
#include <megahost/error.hpp>
#include <megahost/plugin.hpp>
#include <megahost/recompute.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

namespace {

using KeptParts = std::vector<mh::Keep>;

/// Recomputes as little as keeps a step within its memory.
///
/// Plans are tried in one order: more and more blocks compute their feed-forward part again, then
/// more and more of them all, then all in ever larger groups. The first blocks of a stage go first:
/// when the backward pass reaches them, the others have released what they kept.
class Budget : public mh::RecomputePolicy {
public:
  struct Config {
    double memory_gb = 0;
  };

  static void fields(mh::Fields<Config>& f) {
    f.add(
         "memory_gb",
         &Config::memory_gb,
         "what the tensors of one rank may take at the peak of a step: weights, gradients, "
         "optimizer state and activations"
    )
        .required()
        .unit("GB")
        .above(0);
  }

  static bool recomputes_blocks() { return true; }

  Budget(const Config& config, const Args& args)
      : plan_(static_cast<size_t>(args.layers)) {
    if (args.peak_memory && args.layers > 0) {
      choose(1e9 * config.memory_gb, args);
    }
  }

  [[nodiscard]] mh::Keep keep(int64_t layer) const override {
    return plan_.at(static_cast<size_t>(layer));
  }

private:
  /// The first of the plans that fits; of groups of blocks, which may take more again, any.
  void choose(double limit, const Args& args) {
    const auto peak = [&](const KeptParts& plan) {
      return static_cast<double>(args.peak_memory(plan));
    };
    const int64_t layers = args.layers;
    double least = peak(plan_of(2 * layers, layers));
    if (least <= limit) {
      int64_t first = 0; // first to last: those that may be the first that fits
      int64_t last = 2 * layers;
      while (first < last) {
        const int64_t middle = (first + last) / 2;
        if (peak(plan_of(middle, layers)) <= limit) {
          last = middle;
        } else {
          first = middle + 1;
        }
      }
      plan_ = plan_of(last, layers);
      if (const KeptParts finer = plan_of(last, layers, /*finer=*/true); peak(finer) <= limit) {
        plan_ = finer;
      }
      return;
    }
    for (int64_t group = 2; group <= layers; group *= 2) {
      plan_ = groups_of(group, layers);
      const double bytes = peak(plan_);
      if (bytes <= limit) {
        return;
      }
      least = std::min(least, bytes);
    }
    char text[160];
    std::snprintf(
        text,
        sizeof(text),
        "recompute.memory_gb = %g is too little: a step of this rank takes at least %.3f GB, with "
        "all blocks recomputed",
        limit / 1e9,
        std::ceil(least / 1e6) / 1e3
    );
    throw mh::Error(
        text, "raise it, lower batch.micro or model.seq_length, or split the model over more ranks"
    );
  }

  /// Plan 0 keeps everything, plan `layers` no feed-forward, plan 2 * layers inputs of blocks only.
  /// The finer one goes half of the way from the plan before.
  static KeptParts plan_of(int64_t number, int64_t layers, bool finer = false) {
    KeptParts plan;
    for (int64_t i = 0; i < layers; ++i) {
      if (i < number - layers) {
        plan.push_back({.everything = false});
      } else if (i < number) {
        plan.push_back({.everything = true, .redo = {"mlp"}});
      } else {
        plan.emplace_back();
      }
    }
    if (finer && number > layers) {
      plan.at(static_cast<size_t>(number - layers - 1)) = {.redo = {"attention", "mlp"}};
    } else if (finer && number > 0) {
      plan.at(static_cast<size_t>(number - 1)) = {.redo = {"attention"}};
    }
    return plan;
  }

  static KeptParts groups_of(int64_t size, int64_t layers) {
    KeptParts plan;
    for (int64_t i = 0; i < layers; ++i) {
      plan.push_back({.everything = false, .joined = i % size != 0});
    }
    return plan;
  }

  KeptParts plan_;
};

} // namespace

MH_PLUGIN(
    "org.megahost.recompute-budget",
    "0.1.0",
    "recomputation within a memory budget",
    [](mh::Registry& r) {
      r.add<Budget>("budget", "recompute as little as keeps a step within its memory");
    }
);
