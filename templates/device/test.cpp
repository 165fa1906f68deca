// The plugin as a recipe would use it.  usage: unit_test PLUGIN.so
#include "expect.hpp"

#include <megahost/device.hpp>
#include <megahost/host.hpp>

int main(int, char** arguments) {
  mh::Host host;
  host.load(arguments[1]);
  const auto device = host.make<mh::Device>("@name@", mh::Table{{"peak", 2e11}});
  expect(device->device().is_cpu(), "it is the CPU");
  expect(device->peak_flops(at::kFloat) == 2e11, "with the peak that was given");
  expect(device->peak_flops(at::kBFloat16) == 0, "and none that was not");
  expect(device->memory() > 0, "it has memory");
  return failures;
}
