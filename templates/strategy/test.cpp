// The plugin as the host would use it.  usage: unit_test PLUGIN.so
#include "expect.hpp"

#include <megahost/host.hpp>
#include <megahost/strategy.hpp>

int main(int, char** arguments) {
  mh::Host host;
  host.load(arguments[1]);
  mh::Rules rules;
  host.make<mh::Strategy>("@name@")->rules(rules);
  expect(rules.maps(mh::axis::mlp, mh::MeshAxis::tp), "hidden units lie along tp");
  expect(!rules.maps(mh::axis::heads, mh::MeshAxis::tp), "heads do not");
  expect(!rules.maps(mh::axis::vocab, mh::MeshAxis::tp), "nor does the vocabulary");

  mh::Rules more;
  host.make<mh::Strategy>("@name@", mh::Table{{"@own_key@_vocab", true}})->rules(more);
  expect(more.maps(mh::axis::vocab, mh::MeshAxis::tp), "unless it is asked for");
  return failures;
}
