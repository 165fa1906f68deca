#include "megahost/builder.hpp"

#include "tests/nn/bench.hpp"

#include <ATen/core/grad_mode.h>

using namespace mh;
using mh::test::Bench;

TEST_CASE("a constructor that writes into a value is refused") {
  Bench bench;
  Parameter& parameter = bench.builder.parameter({{"share", {{axis::embed, 3}}, Init::ones()}}, {});
  bench.builder.refuse_written_values();
  const at::NoGradGuard no_grad;
  parameter.value.mul_(2);
  CHECK_THROWS_WITH(
      bench.builder.refuse_written_values(),
      doctest::Contains("a constructor writes into the value of the parameter `share`")
  );
}
