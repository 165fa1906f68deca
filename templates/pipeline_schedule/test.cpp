// The plugin as the host would use it.  usage: unit_test PLUGIN.so
#include "expect.hpp"

#include <megahost/host.hpp>
#include <megahost/pipeline_schedule.hpp>

int main(int, char** arguments) {
  using Op = mh::Instruction::Op;
  mh::Host host;
  host.load(arguments[1]);
  const auto schedule = host.make<mh::PipelineSchedule>(
      "@name@", mh::Table(), {.stages = 2, .virtual_stages = 1, .microbatches = 2}
  );
  const std::vector<mh::Instruction> first = {
      {Op::forward, 0, 0},
      {Op::send_forward, 0, 0},
      {Op::forward, 0, 1},
      {Op::send_forward, 0, 1},
      {Op::receive_backward, 0, 0},
      {Op::receive_backward, 0, 1},
      {Op::backward, 0, 0},
      {Op::backward, 0, 1},
  };
  expect(schedule->instructions(0) == first, "the first stage sends forward, receives backward");
  expect(schedule->instructions(1).front().op == Op::receive_forward, "the last one waits for it");
  const auto alternating = host.make<mh::PipelineSchedule>(
      "@name@", mh::Table{{"group", 1}}, {.stages = 2, .virtual_stages = 1, .microbatches = 2}
  );
  expect(alternating->most_live(0) == 1, "a group of one keeps the activations of one microbatch");
  return failures;
}
