// The plugin as a recipe would use it.  usage: unit_test PLUGIN.so
#include "expect.hpp"

#include <megahost/host.hpp>
#include <megahost/recompute.hpp>

int main(int, char** arguments) {
  mh::Host host;
  host.load(arguments[1]);
  const auto policy =
      host.make<mh::RecomputePolicy>("@name@", mh::Table{{"every", 3}}, {.layers = 6});
  expect(!policy->keep(0).everything && !policy->keep(3).everything, "each third block runs again");
  expect(policy->keep(1).everything && policy->keep(5).everything, "the others keep everything");
  return failures;
}
