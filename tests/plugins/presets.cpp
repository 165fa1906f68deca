// Each row of the model-size table is built on the Meta device and has the parameters that it
// claims.

#include "core/recipe/presets.hpp"

#include "megahost/host.hpp"
#include "megahost/model.hpp"

#include <c10/util/accumulate.h>

#include <doctest/doctest.h>

#include <cstdlib>
#include <map>
#include <string>

namespace {

/// Parameters that a token meets: 12.9, 39, 3.3, 22 and 37 billion by the models' papers.
const std::map<std::string, int64_t> kActive{
    {"mixtral-8x7b", 12'879'925'248},
    {"mixtral-8x22b", 39'152'031'744},
    {"qwen3-30b-a3b", 3'353'032'704},
    {"qwen3-235b-a22b", 22'190'763'520},
    {"deepseek-v3", 37'552'282'624}};

} // namespace

TEST_CASE("every row of the model-size table has its parameters when it is built") {
  mh::Host host;
  mh::ReadOptions options;
  options.roots = {std::getenv("MEGAHOST_RECIPE_PATH")};
  const auto presets = mh::load_presets(options);
  CHECK(presets.size() == 88);
  for (const auto& preset : presets) {
    CAPTURE(preset.name);
    mh::Table fields;
    std::string architecture;
    mh::Architecture::Args args;
    for (const auto& entry : preset.model.as_table()) {
      if (entry.key == "use") {
        architecture = entry.value.as_string();
      } else if (entry.key == "seq_length") {
        args.seq_length = entry.value.as_integer();
      } else {
        fields.set(entry.key, entry.value);
      }
    }
    const auto made = host.make<mh::Architecture>(architecture, fields, args);
    const mh::Mesh mesh;
    const mh::Rules rules;
    mh::Model model(
        *made,
        {.mesh = &mesh,
         .rules = &rules,
         .device = at::kMeta,
         .dtype = at::kBFloat16,
         .seq = args.seq_length,
         .microbatch = 1,
         .vocab_multiple = 128}
    );
    CHECK(model.parameters().global_elements() == preset.parameters);
    if (const auto active = kActive.find(preset.name); active != kActive.end()) {
      const auto tokens = static_cast<double>(args.seq_length);
      double used = model.flops().gemms / tokens / 2; // two FLOPs per token and weight
      for (const auto& parameter : model.parameters().all()) {
        for (const auto& piece : parameter.pieces) {
          const bool norm = piece.global_shape.size() == 1;
          if (norm || piece.name == "embedding.word.weight") {
            used += static_cast<double>(c10::multiply_integers(piece.global_shape));
          }
        }
      }
      CHECK(static_cast<int64_t>(used) == active->second);
    }
  }
}
