#define MH_PLUGIN_LICENSE "Apache-2.0"
#include "keys.hpp"
#include "orders.hpp"

#include <megahost/pipeline_schedule.hpp>
#include <megahost/plugin.hpp>
#include <megahost/strategy.hpp>

#include <utility>

namespace {

/// Every rank of pp holds some of the layers; a schedule says what it does when.
class PipelineStrategy : public mh::Strategy, public mh::pipeline::Keys {
public:
  PipelineStrategy(const Config&, const Args&) {}

  void rules(mh::Rules& rules) const override {
    rules.features.push_back({mh::axis::layers, mh::MeshAxis::pp});
  }
};

template <
    mh::pipeline::Order (*make_order)(const mh::PipelineSchedule::Args&),
    class Keys = mh::pipeline::ScheduleKeys>
class BuiltInSchedule : public mh::PipelineSchedule, public Keys {
public:
  using typename Keys::Config;

  BuiltInSchedule(const Config&, const Args& args)
      : BuiltInSchedule(args, make_order(args)) {}

  [[nodiscard]] std::vector<mh::Instruction> instructions(int64_t stage) const override {
    return lists_.at(static_cast<size_t>(stage));
  }

  [[nodiscard]] int64_t most_live(int64_t stage) const override {
    return most_live_.at(static_cast<size_t>(stage));
  }

  [[nodiscard]] mh::ChunkOrder order() const override { return chunks_; }

private:
  BuiltInSchedule(const Args& args, mh::pipeline::Order order)
      : lists_(mh::pipeline::lists_of(order, args))
      , most_live_(std::move(order.most_live))
      , chunks_(order.chunks) {}

  mh::InstructionLists lists_;
  std::vector<int64_t> most_live_;
  mh::ChunkOrder chunks_;
};

} // namespace

MH_PLUGIN("org.megahost.pipeline", "0.1.0", "pipeline parallelism", [](mh::Registry& r) {
  using namespace mh::pipeline;
  r.add<PipelineStrategy>("pipeline", "each rank holds some of the layers: layers -> pp");
  r.add<BuiltInSchedule<gpipe>>("gpipe", "all microbatches forward, then all backward");
  r.add<BuiltInSchedule<one_forward_one_backward, Searched>>(
      "1f1b", "one forward, one backward; interleaved where there are virtual stages"
  );
  r.add<BuiltInSchedule<one_forward_one_backward, OneForwardOneBackward>>(
      "interleaved-1f1b", "the same, by its name where there are virtual stages"
  );
  r.add<BuiltInSchedule<zero_bubble, ZeroBubble>>(
      "zb-h1", "1f1b whose weight gradients fill the waiting, in the same memory"
  );
  r.add<BuiltInSchedule<zero_bubble_vee, ZeroBubbleVee>>(
      "zb-v", "two chunks a stage, down and up again: hardly any waiting, in the memory of 1f1b"
  );
});
