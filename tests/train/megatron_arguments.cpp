// The facts in Megatron-LM's arguments about a model, compared with a recipe's.

#include "core/foreign/megatron_arguments.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

namespace {

mh::Table llama_fields() {
  mh::Table model;
  model.set("layers", 4);
  model.set("hidden", 64);
  model.set("heads", 8);
  model.set("kv_heads", mh::Value());
  model.set("norm_eps", 1e-5);
  model.set("norm", "rmsnorm");
  model.set("activation", "swiglu");
  model.set("positions", "rope");
  model.set("rope_base", 10000.0);
  return model;
}

} // namespace

TEST_CASE("what shapes do not show is compared with Megatron-LM's arguments") {
  const auto differences = [](const char* arguments) {
    return mh::argument_differences(nlohmann::json::parse(arguments), llama_fields());
  };
  CHECK(differences("{}").empty());
  CHECK(differences(R"({"num_attention_heads": 8, "num_query_groups": 8, "kv_channels": 8,
    "norm_epsilon": 1e-5, "normalization": "RMSNorm", "swiglu": true, "rotary_base": 10000,
    "num_experts": 4})")
            .empty());
  const auto heads = differences(R"({"num_attention_heads": 16})");
  REQUIRE(heads.size() == 1);
  CHECK(heads[0] == "heads is 8 in the recipe, and num_attention_heads 16 in the checkpoint");
  const auto groups = differences(R"({"num_query_groups": 2})");
  REQUIRE(groups.size() == 1);
  CHECK(groups[0] == "kv_heads is 8 in the recipe, and num_query_groups 2 in the checkpoint");
  // Without grouped queries the number is Megatron-LM's default, and means nothing.
  CHECK(differences(R"({"num_query_groups": 1, "group_query_attention": false})").empty());
  CHECK(
      differences(R"({"norm_epsilon": 1e-6, "rotary_base": 500000, "normalization": "LayerNorm",
    "swiglu": false})")
          .size() == 4
  );
}
