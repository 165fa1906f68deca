// load.match: the names by which a model's tensors are looked for in a checkpoint.

#include "core/checkpoint/tensor_match.hpp"

#include "tests/formats/refusal.hpp"

#include <doctest/doctest.h>

using mh::TensorMatch;
using namespace mh::test;

TEST_CASE("a star stands for the fewest characters, and keeps them") {
  using Stars = std::vector<std::string>;
  CHECK(mh::stars_of("a.b", "a.b") == Stars{});
  CHECK(mh::stars_of("a.b", "a.bc") == std::nullopt);
  CHECK(mh::stars_of("*", "") == Stars{""});
  CHECK(mh::stars_of("layers.*.weight", "layers.3.q.weight") == Stars{"3.q"});
  CHECK(mh::stars_of("*.weight", "layers.3.weight") == Stars{"layers.3"});
  CHECK(mh::stars_of("a*b*", "axbxb") == Stars{"x", "xb"});
  CHECK(mh::stars_of("layers.*.weight", "layers.3.bias") == std::nullopt);
}

TEST_CASE("the longest pattern that fits decides") {
  const TensorMatch match({
      {"*", false},
      {"layers.*", "blocks.*"},
      {"layers.0.norm.*", true},
      {"layers.1.norm.*", false},
  });
  CHECK(match.theirs("layers.2.mlp.weight") == "blocks.2.mlp.weight");
  CHECK(match.theirs("layers.0.norm.weight") == "layers.0.norm.weight");
  CHECK(match.theirs("layers.1.norm.weight") == std::nullopt);
  CHECK(match.theirs("head.weight") == std::nullopt);
  CHECK(TensorMatch().theirs("head.weight") == "head.weight");
  // A tensor that another program calls otherwise may be named by the model's own name.
  const TensorMatch heads({{"head.*", false}});
  CHECK(heads.theirs("lm_head.weight", {"head.weight"}) == std::nullopt);
  CHECK(heads.theirs("model.norm.weight", {"norm.weight"}) == "model.norm.weight");
}

TEST_CASE("a pattern that fits nothing is refused, with what may be meant") {
  const TensorMatch match({{"haed.weight", false}});
  const std::string sentence = refusal([&] {
    match.require_all_fit({"head.weight", "layers.0.weight"});
  });
  CHECK(contains(sentence, "load.match: \"haed.weight\" fits no tensor that the model asks for"));
  CHECK_NOTHROW(TensorMatch({{"layers.*", true}}).require_all_fit({"layers.0.weight"}));
}
