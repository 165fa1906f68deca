// The plugin as the host would use it.  usage: unit_test PLUGIN.so
#include "expect.hpp"

#include <megahost/error.hpp>
#include <megahost/host.hpp>
#include <megahost/launcher.hpp>

#include <cstdlib>

int main(int, char** arguments) {
  mh::Host host;
  host.load(arguments[1]);
  const auto launcher = host.make<mh::Launcher>("@name@");
  expect(!launcher->detect(), "nothing in an empty environment");

  setenv("@UPPER@_RANK", "3", 1);
  bool refused = false;
  try {
    (void)launcher->detect();
  } catch (const mh::Error&) {
    refused = true;
  }
  expect(refused, "a part of the variables is refused");

  setenv("@UPPER@_SIZE", "8", 1);
  setenv("@UPPER@_MASTER", "node7:29500", 1);
  const auto world = launcher->detect();
  expect(world && world->rank == 3 && world->size == 8, "rank 3 of 8");
  expect(world && world->master_address == "node7" && world->master_port == 29500, "at node7");
  const auto other = host.make<mh::Launcher>("@name@", mh::Table{{"prefix", "ANOTHER"}});
  expect(!other->detect(), "nothing of variables with another prefix");
  return failures;
}
