// GPipe: each stage runs all microbatches forward, then all backward. Simple, and the baseline of
// every other schedule: it keeps the activations of all microbatches, or of a group at a time.
//
// Source: arXiv:1811.06965

#define MH_PLUGIN_LICENSE "MIT"
#include <megahost/error.hpp>
#include <megahost/pipeline_schedule.hpp>
#include <megahost/plugin.hpp>

#include <algorithm>

namespace {

using Op = mh::Instruction::Op;

class @Name@ : public mh::PipelineSchedule {
public:
  struct Config {
    int64_t group = 0;
  };

  // Each field is an option of parallel.schedule: checked, documented, with a default.
  static void fields(mh::Fields<Config>& f) {
    f.add("group", &Config::group, "microbatches that run forward before they run backward; 0: all")
        .at_least(0);
  }

  @Name@(const Config& config, const Args& args)
      : group_(config.group > 0 ? std::min(config.group, args.microbatches) : args.microbatches) {
    if (args.virtual_stages > 1) {
      throw mh::Error(
          "the schedule @name@ has one chunk of layers a stage, but parallel.virtual_stages is " +
              std::to_string(args.virtual_stages),
          "set parallel.virtual_stages = 1"
      );
    }
    // The order of each stage's passes; sends and receives come between them.
    std::vector<mh::Instruction> passes;
    for (int64_t first = 0; first < args.microbatches; first += group_) {
      const int64_t end = std::min(first + group_, args.microbatches);
      for (const Op op : {Op::forward, Op::backward}) {
        for (int64_t m = first; m < end; ++m) {
          passes.push_back({op, 0, static_cast<int32_t>(m)});
        }
      }
    }
    lists_ = mh::with_transfers(
        args, mh::InstructionLists(static_cast<size_t>(args.stages), passes)
    );
  }

  // The instructions of one stage in one step, in order.
  std::vector<mh::Instruction> instructions(int64_t stage) const override {
    return lists_.at(static_cast<size_t>(stage));
  }

  // Its promise of memory: megahost refuses a list that holds the activations of more passes.
  int64_t most_live(int64_t) const override { return group_; }

private:
  int64_t group_;
  mh::InstructionLists lists_;
};

} // namespace

MH_PLUGIN("@id@", "0.1.0", "A plugin with a pipeline schedule", [](mh::Registry& registry) {
  registry.add<@Name@>("@name@", "all microbatches forward, then all backward");
})
