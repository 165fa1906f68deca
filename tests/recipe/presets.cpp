#include "fixture.hpp"

#include <doctest/doctest.h>

#include <cmath>

namespace {

int64_t get(const mh::Preset& preset, const char* key, int64_t otherwise = 0) {
  const mh::Value* value = preset.model.find(key);
  return value ? value->as_integer() : otherwise;
}

/// Parameters by hand: learned positions, biases, tied output (gpt); no biases, gated, untied
/// (llama), with what Qwen adds.
int64_t parameters(const mh::Preset& preset) {
  const int64_t layers = get(preset, "layers");
  const int64_t hidden = get(preset, "hidden");
  const int64_t heads = get(preset, "heads");
  const int64_t vocab = get(preset, "vocab");
  if (preset.model.find("use")->as_string() == "gpt") {
    const int64_t attention = 4 * hidden * hidden + 4 * hidden;
    const int64_t feed_forward = 8 * hidden * hidden + 5 * hidden;
    return (vocab + get(preset, "seq_length")) * hidden +
           layers * (attention + feed_forward + 4 * hidden) + 2 * hidden;
  }
  const int64_t kv = hidden / heads * get(preset, "kv_heads", heads);
  const mh::Value* biases = preset.model.find("qkv_bias");
  const mh::Value* norms = preset.model.find("qk_norm");
  const int64_t attention = 2 * hidden * hidden + 2 * hidden * kv +
                            (biases && biases->as_boolean() ? hidden + 2 * kv : 0) +
                            (norms && norms->as_boolean() ? 2 * get(preset, "head_dim") : 0);
  const int64_t feed_forward = 3 * hidden * get(preset, "ffn_hidden");
  return 2 * vocab * hidden + layers * (attention + feed_forward + 2 * hidden) + hidden;
}

} // namespace

TEST_CASE("every row of the model-size table counts its parameters right and resolves") {
  const std::vector<mh::Preset> presets = mh::load_presets(mh::test::options());
  CHECK(presets.size() == 24);
  const mh::test::Folder folder;
  for (const mh::Preset& preset : presets) {
    CAPTURE(preset.name);
    CHECK(preset.parameters == parameters(preset));
    CHECK_FALSE(preset.source.empty());
    // The name says the size: 124m, 1.7b, rounded as the authors did.
    const std::string size = preset.name.substr(preset.name.rfind('-') + 1);
    const double published = std::stod(size) * (size.back() == 'b' ? 1e9 : 1e6);
    const double allowed = preset.name == "qwen2.5-7b" ? 0.09 : 0.04; // its authors' 7 is 7.6
    CHECK(std::abs(static_cast<double>(preset.parameters) / published - 1) < allowed);
    const auto file =
        folder.write("row.toml", "model.preset = \"" + preset.name + "\"\ntrain.iters = 1\n");
    const mh::Recipe recipe = mh::test::resolve_file(file).recipe;
    CHECK(recipe.model.seq_length == get(preset, "seq_length"));
    CHECK(recipe.model.options.find("layers")->as_integer() == get(preset, "layers"));
  }
}

TEST_CASE("the published counts") {
  const std::map<std::string, int64_t> known{
      {"gpt2-124m", 124'439'808},
      {"gpt2-1.5b", 1'557'611'200},
      {"llama2-7b", 6'738'415'616},
      {"llama2-70b", 68'976'648'192},
      {"llama3-8b", 8'030'261'248},
      {"llama3-70b", 70'553'706'496},
      {"llama3-405b", 405'853'388'800},
      {"mistral-7b", 7'241'732'096},
      {"qwen2.5-7b", 7'615'616'512},
      {"qwen3-8b", 8'190'735'360}};
  size_t found = 0;
  for (const mh::Preset& preset : mh::load_presets(mh::test::options())) {
    if (const auto count = known.find(preset.name); count != known.end()) {
      CHECK(preset.parameters == count->second);
      ++found;
    }
  }
  CHECK(found == known.size());
}

TEST_CASE("a folder's own presets hide the rows of later folders") {
  const mh::test::Folder folder;
  folder.write(
      "presets/models.toml",
      "[\"gpt2-124m\"]\nparameters = 1\nsource = \"ours\"\nuse = \"gpt\"\nlayers = 1\n"
  );
  mh::ReadOptions options;
  options.roots = {folder.path(), mh::test::recipes()};
  const auto presets = mh::load_presets(options);
  CHECK(presets.size() == 24);
  CHECK(presets.front().source == "ours");
}
