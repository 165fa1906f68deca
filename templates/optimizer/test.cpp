// The plugin as a recipe would use it.  usage: unit_test PLUGIN.so
#include "expect.hpp"

#include <megahost/host.hpp>
#include <megahost/optimizer.hpp>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

int main(int, char** arguments) {
  mh::Host host;
  host.load(arguments[1]);
  const auto optimizer = host.make<mh::Optimizer>("@name@", mh::Table{{"memory", 0.5}});

  mh::UpdateItem item;
  item.name = "weight";
  item.weight = at::full({3}, 2.0);
  item.gradient = at::full({3}, -4.0);
  item.state = {at::zeros({3})};
  optimizer->update({&item, 1}, {.step = 1, .lr = 0.25});

  expect(item.weight[0].item<double>() == 2.25, "a step of lr against the gradient");
  expect(item.state[0][0].item<double>() == -2, "the average keeps half of itself");
  return failures;
}
