#include "core/recipe/commands.hpp"
#include "fixture.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace presets_tests {

namespace {

int64_t get(const mh::Preset& preset, const char* key, int64_t otherwise = 0) {
  const mh::Value* value = preset.model.find(key);
  return value ? value->as_integer() : otherwise;
}

/// Latent attention: down to the latents, their norms, up to the heads, and out.
int64_t latent_attention(const mh::Preset& preset) {
  const int64_t hidden = get(preset, "hidden"), heads = get(preset, "heads");
  const int64_t head = get(preset, "head_dim"), rotated = get(preset, "rope_head_dim");
  const int64_t value = get(preset, "v_head_dim");
  const int64_t q = get(preset, "q_rank"), kv = get(preset, "kv_rank");
  return hidden * (q + kv + rotated) + q + kv + q * heads * (head + rotated) +
         kv * heads * (head + value) + heads * value * hidden;
}

bool is(const mh::Preset& preset, const char* key, bool otherwise) {
  const mh::Value* value = preset.model.find(key);
  return value ? value->as_boolean() : otherwise;
}

/// A word embedding, learned positions unless they are rotary, an output layer that may be tied or have
/// a bias, layers with or without biases.
int64_t gpt_parameters(const mh::Preset& preset) {
  const int64_t hidden = get(preset, "hidden"), heads = get(preset, "heads");
  const int64_t vocab = get(preset, "vocab");
  const int64_t kv = hidden / heads * get(preset, "kv_heads", heads);
  const int64_t units = 4 * hidden;
  const int64_t biases = is(preset, "bias", true) ? 3 * hidden + 2 * kv + units : 0;
  const int64_t norms = is(preset, "shared_norm", false) ? 1 : 2;
  const int64_t layer =
      2 * hidden * hidden + 2 * hidden * kv + 2 * hidden * units + biases + norms * 2 * hidden;
  const bool learned = preset.model.find("positions") == nullptr;
  const int64_t rows =
      (is(preset, "tied", true) ? 1 : 2) * vocab + (learned ? get(preset, "seq_length") : 0);
  return rows * hidden + get(preset, "layers") * layer + 2 * hidden +
         (is(preset, "head_bias", false) ? vocab : 0);
}

/// Parameters by hand: as above (gpt); no biases, gated, untied but for Command-R (llama), with what
/// Qwen, OLMo 2, mixtures and GPT-OSS add.
int64_t parameters(const mh::Preset& preset) {
  const int64_t layers = get(preset, "layers");
  const int64_t hidden = get(preset, "hidden");
  const int64_t heads = get(preset, "heads");
  const int64_t vocab = get(preset, "vocab");
  if (preset.model.find("use")->as_string() == "gpt") {
    return gpt_parameters(preset);
  }
  const int64_t head = get(preset, "head_dim", hidden / heads);
  const int64_t q = heads * head, kv = head * get(preset, "kv_heads", heads);
  const mh::Value* biases = preset.model.find("qkv_bias");
  const mh::Value* norms = preset.model.find("qk_norm");
  const bool over_all = preset.model.find("qk_norm_over") != nullptr;
  const bool biased = is(preset, "bias", false); // GPT-OSS, in all linear layers
  const int64_t attention =
      get(preset, "kv_rank") > 0
          ? latent_attention(preset)
          : 2 * hidden * q + 2 * hidden * kv + (biased ? hidden : 0) +
                (is(preset, "sinks", false) ? heads : 0) +
                (biased || (biases && biases->as_boolean()) ? q + 2 * kv : 0) +
                (norms && norms->as_boolean() ? over_all ? q + kv : 2 * head : 0);
  const int64_t experts = get(preset, "experts"); // with a router; 0: there is one feed-forward
  const int64_t units = experts > 0 ? get(preset, "expert_hidden", get(preset, "ffn_hidden"))
                                    : get(preset, "ffn_hidden");
  const int64_t all = units * std::max<int64_t>(1, experts) + get(preset, "shared_hidden");
  const int64_t dense = get(preset, "first_dense");
  const int64_t expert_biases = biased ? experts * (2 * units + hidden + 1) : 0;
  const int64_t feed_forwards =
      (layers - dense) * (3 * hidden * all + hidden * experts + expert_biases) +
      dense * 3 * hidden * get(preset, "ffn_hidden");
  const int64_t layer_norms = is(preset, "shared_norm", false) ? 1 : 2;
  const int64_t tables = is(preset, "tied", false) ? 1 : 2;
  return tables * vocab * hidden + layers * (attention + layer_norms * hidden) + feed_forwards +
         hidden;
}

/// How far the sizes in names lie from those of the models, where that is more than 4%.
const std::map<std::string, double> kCoarse{
    {"qwen2.5-7b", 0.09},
    {"olmo2-1b", 0.49},
    {"olmo2-7b", 0.05},
    {"olmo2-13b", 0.06},
    {"phi-1.5b", 0.06}};

} // namespace

TEST_CASE("every row of the model-size table counts its parameters right and resolves") {
  std::vector<mh::Preset> presets = mh::load_presets(mh::test::options());
  CHECK(presets.size() == 88);
  std::erase_if(
      presets,
      [](const mh::Preset& preset) { // counted with their plugins: plugin / presets
        const std::string& use = preset.model.find("use")->as_string();
        return use == "bert" || use == "gemma" || use == "hybrid" || use == "t5";
      }
  );
  CHECK(presets.size() == 50);
  const mh::test::Folder folder;
  for (const mh::Preset& preset : presets) {
    CAPTURE(preset.name);
    CHECK(preset.parameters == parameters(preset));
    CHECK_FALSE(preset.source.empty());
    if (preset.model.find("experts") == nullptr) {
      // The name says the size: 124m, 1.7b, rounded as the authors did.
      const std::string size = preset.name.substr(preset.name.rfind('-') + 1);
      const double published = std::stod(size) * (size.back() == 'b' ? 1e9 : 1e6);
      const auto coarse = kCoarse.find(preset.name);
      const double allowed = coarse == kCoarse.end() ? 0.04 : coarse->second;
      CHECK(std::abs(static_cast<double>(preset.parameters) / published - 1) < allowed);
    }
    const auto file =
        folder.write("row.toml", "model.preset = \"" + preset.name + "\"\ntrain.iters = 1\n");
    const mh::Recipe recipe = mh::test::resolve_file(file).recipe;
    CHECK(recipe.model.seq_length == get(preset, "seq_length"));
    CHECK(recipe.model.options.find("layers")->as_integer() == get(preset, "layers"));
  }
}

TEST_CASE("the published counts") {
  const std::map<std::string, int64_t> known{
      {"command-r-35b", 34'980'831'232}, {"falcon-7b", 6'921'720'704},
      {"falcon-40b", 41'303'293'952},    {"gpt-oss-20b", 20'914'757'184},
      {"gpt-oss-120b", 116'829'156'672}, {"gpt2-124m", 124'439'808},
      {"gpt2-1.5b", 1'557'611'200},      {"llama2-7b", 6'738'415'616},
      {"llama2-70b", 68'976'648'192},    {"llama3-8b", 8'030'261'248},
      {"llama3-70b", 70'553'706'496},    {"llama3-405b", 405'853'388'800},
      {"mamba2-130m", 128'989'632},      {"mistral-7b", 7'241'732'096},
      {"olmo2-7b", 7'298'617'344},       {"phi-1.5b", 1'418'270'720},
      {"phi-2-2.7b", 2'779'683'840},     {"pythia-70m", 70'426'624},
      {"pythia-12b", 11'846'072'320},    {"qwen2.5-7b", 7'615'616'512},
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
  CHECK(presets.size() == 88);
  CHECK(presets.front().source == "ours");
}

TEST_CASE("every layout resolves with each model that it was made for, on the ranks of its name") {
  const auto layouts = mh::load_layouts(mh::test::options());
  const mh::Schema parallel = mh::test::Plugins().section("parallel");
  CHECK(layouts.size() == 33);
  const mh::test::Folder folder;
  std::set<std::string> models;
  for (const mh::Preset& preset : mh::load_presets(mh::test::options())) {
    models.insert(preset.name);
  }
  for (const mh::LayoutPreset& layout : layouts) {
    CAPTURE(layout.name);
    CHECK_FALSE(models.contains(layout.name));
    CHECK(
        ("-" + layout.name + "-").find("-" + std::to_string(layout.ranks(parallel)) + "-") !=
        std::string::npos
    );
    for (const std::string& model : layout.models) {
      CAPTURE(model);
      CHECK(models.contains(model));
      const auto file = folder.write(
          "row.toml", "preset = [\"" + model + "\", \"" + layout.name + "\"]\ntrain.iters = 1\n"
      );
      const mh::Recipe recipe = mh::test::resolve_file(file).recipe;
      CHECK(recipe.parallel.ranks() == layout.ranks(parallel));
      CHECK(recipe.tree.find("preset") == nullptr);
      CHECK(recipe.tree.find_path("parallel.tensor")->origin.layer() == "preset");
    }
  }
}

TEST_CASE("a layout stands above its model, below the recipe") {
  const mh::test::Folder folder;
  const auto resolved = [&](const std::string& text) {
    return mh::test::resolve_file(folder.write("a.toml", text + "\ntrain.iters = 1\n"));
  };
  const mh::Recipe plain = resolved("preset = \"70b-32\"").recipe;
  CHECK(plain.model.options.find("layers")->as_integer() == 80);
  CHECK(plain.model.options.find("vocab")->as_integer() == 32000);
  CHECK(plain.recompute.use == "full");
  CHECK(plain.parallel.ranks() == 32);
  CHECK(
      resolved("preset = \"7b-8\"\nmodel.preset = \"mistral-7b\"").recipe.model.seq_length == 4096
  );
  const mh::Recipe own =
      resolved(
          "preset = [\"llama3-70b\", \"70b-32\"]\nparallel.data = 8\nrecompute.use = \"selective\""
      )
          .recipe;
  CHECK(own.model.options.find("vocab")->as_integer() == 128256);
  CHECK(own.parallel.ranks() == 64);
  CHECK(own.recompute.options.find("parts")->as_array().size() == 1);
  // A recipe with a model of its own takes the layout alone.
  const mh::Recipe alone =
      resolved("preset = \"7b-8\"\nmodel = { use = \"gpt\", layers = 2, hidden = 64, heads = 4 }")
          .recipe;
  CHECK(alone.model.options.find("layers")->as_integer() == 2);
}

TEST_CASE("every layer of a preset is explained") {
  const mh::test::Folder folder;
  const auto file = folder.write("a.toml", "preset = \"7b-8\"\nbatch.micro = 2\ntrain.iters = 1\n");
  const mh::Loaded loaded = mh::load_recipe(file, mh::test::options());
  const mh::test::Plugins plugins;
  const mh::Resolved resolved = mh::resolve(loaded, plugins.lookup(), {});
  const auto lines = [&](const char* key) { return mh::explain_recipe(loaded, resolved, key); };
  const std::string tokens = lines("model.seq_length");
  CHECK(tokens.find("preset llama2-7b  4096") < tokens.find("-> preset 7b-8"));
  CHECK(lines("batch.micro").find("-> recipe") != std::string::npos);
  CHECK(lines("preset").starts_with("preset = \"7b-8\"\n"));
}

TEST_CASE("presets that do not exist") {
  const mh::test::Folder folder;
  const auto why = [&](const std::string& text) {
    return mh::test::refusal([&] {
      static_cast<void>(
          mh::load_recipe(folder.write("a.toml", text + "\ntrain.iters = 1\n"), mh::test::options())
      );
    });
  };
  const std::string near = why("preset = \"70b-23\"");
  CHECK(near.starts_with("preset is \"70b-23\", expected the name of a model or layout preset"));
  CHECK(near.find("did you mean `70b-32`?") != std::string::npos);
  CHECK(near.find("a.toml:1:10") != std::string::npos);
  CHECK(why("preset = 3").starts_with("preset is 3, expected"));
  CHECK(why("preset = [\"llama2-7b\", 3]").starts_with("preset is 3, expected"));
  CHECK(why("preset = \"llama2-77b\"").find("did you mean `llama2-7b`?") != std::string::npos);
  folder.write("presets/layouts.toml", "[broken]\nmodels = []\nmemory = \"x\"\nsource = \"y\"\n");
  mh::LoadOptions options = mh::test::options();
  options.roots = {folder.path()};
  CHECK(mh::test::refusal([&] { static_cast<void>(mh::load_layouts(options)); }
  ).starts_with("preset broken lacks `models`, `memory` or `source`"));
}

TEST_CASE("--scale gives each rank a sample, also of a recipe that has fewer") {
  const mh::test::Folder folder;
  const auto file = folder.write(
      "a.toml", "model.use = \"gpt\"\ndata.use = \"mock\"\ntrain.iters = 9\nbatch.global = 1\n"
  );
  for (const int64_t ranks : {1, 2, 3, 8}) {
    mh::LoadOptions options = mh::test::options();
    options.layers = {mh::scale_recipe(
        mh::test::resolve_file(file).recipe.tree, mh::test::Plugins().lookup(), ranks
    )};
    const mh::Facts facts{.bf16 = false, .world = ranks};
    CHECK(mh::test::resolve_file(file, options, facts).recipe.batch.global == ranks);
  }
}

TEST_CASE("--scale trains on as many samples on any number of ranks, where that is enough for all"
) {
  const mh::test::Folder folder;
  const auto file = folder.write(
      "a.toml",
      "model.use = \"gpt\"\ndata.use = \"mock\"\nmodel.heads = 8\nbatch.global = 4\ntrain.iters = 4\n[parallel]\ntensor = 8\n"
  );
  for (const int64_t ranks : {1, 2, 8}) {
    mh::LoadOptions options = mh::test::options();
    options.layers = {mh::scale_recipe(
        mh::test::resolve_file(file).recipe.tree, mh::test::Plugins().lookup(), ranks
    )};
    const mh::Facts facts{.bf16 = false, .world = ranks};
    CHECK(mh::test::resolve_file(file, options, facts).recipe.batch.global == 4);
  }
}

TEST_CASE("--scale fits the schedule to a run that is typed shorter than that") {
  const mh::test::Folder folder;
  const auto file = folder.write(
      "a.toml",
      "model.use = \"gpt\"\ndata.use = \"mock\"\nbatch.global = 4\ntrain.iters = 900\n"
      "lr_schedule = { use = \"cosine\", warmup_iters = 300, decay_iters = 800 }\n"
  );
  const mh::Value tree = mh::test::resolve_file(file).recipe.tree;
  for (const int64_t length : {1, 2, 15, 100}) {
    mh::LoadOptions options = mh::test::options();
    options.layers = {mh::scale_recipe(tree, mh::test::Plugins().lookup(), 1, {.length = length})};
    const mh::Recipe small = mh::test::resolve_file(file, options).recipe;
    CHECK(small.train.iters == std::min<int64_t>(length, 20));
    const mh::Value* warmup = small.tree.find_path("lr_schedule.warmup_iters");
    CHECK((warmup == nullptr || warmup->as_integer() < small.train.iters));
  }
}

TEST_CASE("--scale keeps the axes of a layout as far as the ranks go") {
  const mh::test::Folder folder;
  const auto scaled = [&](const std::string& preset, int64_t ranks) {
    const auto file = folder.write(
        "a.toml", "preset = \"" + preset + "\"\ntrain.iters = 9\ndata.use = \"mock\"\n"
    );
    mh::LoadOptions options = mh::test::options();
    options.layers = {mh::scale_recipe(
        mh::test::resolve_file(file).recipe.tree, mh::test::Plugins().lookup(), ranks
    )};
    return mh::test::resolve_file(file, options, {.bf16 = false, .world = ranks}).recipe.parallel;
  };
  const auto eight = scaled("70b-32", 8);
  CHECK(eight.tensor == 2);
  CHECK(eight.pipeline == 2);
  CHECK(eight.data_degree(8) == 2);
  CHECK(eight.sequence);
  CHECK(eight.zero == 1);
  CHECK(scaled("70b-32", 4).data_degree(4) == 1);
  CHECK(scaled("gpt-76.1b-1024", 8).virtual_stages == 2);
  CHECK(scaled("7b-8", 8).data_degree(8) == 8);
  CHECK(scaled("gpt-22b-8", 8).tensor == 8);
  CHECK(scaled("llama3-405b-16384-128k", 8).context == 2);
  CHECK(scaled("70b-32", 1).ranks() == 1);
  for (const mh::LayoutPreset& layout : mh::load_layouts(mh::test::options())) {
    CAPTURE(layout.name);
    CHECK(scaled(layout.name, 8).ranks() == 8);
  }
}

} // namespace presets_tests
