// Each row of the model-size table is built on the Meta device and has the parameters that it
// claims.

#include "core/recipe/presets.hpp"
#include "megahost/host.hpp"
#include "megahost/model.hpp"

#include <doctest/doctest.h>

#include <cstdlib>

TEST_CASE("every row of the model-size table has its parameters when it is built") {
  mh::Host host;
  mh::ReadOptions options;
  options.roots = {std::getenv("MEGAHOST_RECIPE_PATH")};
  const auto presets = mh::load_presets(options);
  CHECK(presets.size() == 26);
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
  }
}
