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
  }

  // What one stage does in one step, in order. Sends never wait, receives do.
  std::vector<mh::Instruction> instructions(int64_t stage) const override {
    const bool first = stage == 0, last = stage == args_.stages - 1;
    std::vector<mh::Instruction> list;
    const auto add = [&](bool wanted, Op op, int64_t microbatch) {
      if (wanted) {
        list.push_back({op, 0, static_cast<int32_t>(microbatch)});
      }
    };
    for (int64_t m = 0; m < args_.microbatches; ++m) {
      add(!first, Op::receive_forward, m);
      add(true, Op::forward, m);
      add(!last, Op::send_forward, m);
    }
    for (int64_t m = 0; m < args_.microbatches; ++m) {
      add(!last, Op::receive_backward, m);
      add(true, Op::backward, m);
      add(!first, Op::send_backward, m);
    }
    return list;
  }

private:
  Args args_;
};

} // namespace

MH_PLUGIN("@id@", "0.1.0", "A plugin with a pipeline schedule", [](mh::Registry& registry) {
  registry.add<@Name@>("@name@", "all microbatches forward, then all backward");
})
