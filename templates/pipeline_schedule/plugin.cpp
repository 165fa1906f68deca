// GPipe: each stage runs all microbatches forward, then all backward. Simple, and the baseline of
// every other schedule: it keeps the activations of all microbatches.
//
// Source: arXiv:1811.06965

#define MH_PLUGIN_LICENSE "MIT"
#include <megahost/error.hpp>
#include <megahost/pipeline_schedule.hpp>
#include <megahost/plugin.hpp>

namespace {

using Op = mh::Instruction::Op;

class @Name@ : public mh::PipelineSchedule {
public:
  struct Config {};

  static void fields(mh::Fields<Config>&) {} // f.add(...) makes an option

  @Name@(const Config&, const Args& args)
      : args_(args) {
    if (args.virtual_stages > 1) {
      throw mh::Error(
          "the schedule @name@ has one chunk of layers a stage, but parallel.virtual_stages is " +
              std::to_string(args.virtual_stages),
          "set parallel.virtual_stages = 1"
      );
    }
    // The order of each stage's passes; sends and receives come between them.
    const auto microbatches = static_cast<int32_t>(args.microbatches);
    std::vector<mh::Instruction> passes;
    for (int32_t m = 0; m < microbatches; ++m) {
      passes.push_back({Op::forward, 0, m});
    }
    for (int32_t m = 0; m < microbatches; ++m) {
      passes.push_back({Op::backward, 0, m});
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
  int64_t most_live(int64_t) const override { return args_.microbatches; }

private:
  Args args_;
  mh::InstructionLists lists_;
};

} // namespace

MH_PLUGIN("@id@", "0.1.0", "A plugin with a pipeline schedule", [](mh::Registry& registry) {
  registry.add<@Name@>("@name@", "all microbatches forward, then all backward");
})
