// The plugin as a recipe would use it.  usage: unit_test PLUGIN.so
#include "expect.hpp"

#include <megahost/host.hpp>
#include <megahost/lr_schedule.hpp>

int main(int, char** arguments) {
  mh::Host host;
  host.load(arguments[1]);
  const auto schedule = host.make<mh::LrSchedule>(
      "@name@", mh::Table{{"warmup_share", 0.25}}, {.lr = 2, .train_iters = 20}
  );
  expect(schedule->lr({.updates = 0}) == 0, "warm-up starts at zero");
  expect(schedule->lr({.updates = 5}) == 2, "level after warm-up");
  expect(schedule->lr({.updates = 16}) == 2, "level before cool-down");
  expect(schedule->lr({.updates = 18}) == 1, "half way down");
  expect(schedule->lr({.updates = 20}) == 0, "cool-down ends at zero");
  return failures;
}
