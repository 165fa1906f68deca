// A trapezoid: up in a straight line, level, and down to zero over the last part of the run.
//
//   n <= W        lr n / W
//   n <= N - C    lr
//   n <= N        lr (N - n) / C        N updates in all, W of warm-up, C of cool-down

#define MH_PLUGIN_LICENSE "MIT"
#include <megahost/lr_schedule.hpp>
#include <megahost/plugin.hpp>

#include <algorithm>
#include <string>

namespace {

class @Name@ : public mh::LrSchedule {
public:
  struct Config {
    double warmup_share = 0.01;
    double cooldown_share = 0.2;
  };

  // Each field is an option of the recipe's section: checked, documented, with a default.
  static void fields(mh::Fields<Config>& f) {
    f.add("warmup_share", &Config::warmup_share, "share of the run that warms up").range(0, 1);
    f.add("cooldown_share", &Config::cooldown_share, "share of the run that cools down")
        .range(0, 1);
    f.check("cooldown_share", [](const Config& c) -> std::string {
      return c.warmup_share + c.cooldown_share > 1
                 ? "warmup_share and cooldown_share sum to more than the run"
                 : "";
    });
  }

  @Name@(const Config& config, const Args& args)
      : peak_(args.lr)
      , end_(static_cast<double>(args.train_iters))
      , warmup_(config.warmup_share * end_)
      , cooldown_(config.cooldown_share * end_) {}

  // A pure function of what is done: resuming needs nothing else.
  double lr(const mh::Completed& completed) const override {
    const auto n = static_cast<double>(completed.updates);
    const double up = warmup_ > 0 ? n / warmup_ : 1;
    const double down = cooldown_ > 0 ? (end_ - n) / cooldown_ : 1;
    return peak_ * std::clamp(std::min(up, down), 0.0, 1.0);
  }

private:
  double peak_, end_, warmup_, cooldown_;
};

} // namespace

MH_PLUGIN("@id@", "0.1.0", "A plugin with a learning-rate schedule", [](mh::Registry& registry) {
  registry.add<@Name@>("@name@", "up, level, and down to zero at the end of the run");
})
