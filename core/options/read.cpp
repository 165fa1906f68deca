#include "core/options/read.hpp"

#include "core/base/folders.hpp"
#include "core/base/number_text.hpp"
#include "core/base/text.hpp"
#include "core/checkpoint/model_from.hpp"
#include "core/draw/report.hpp"
#include "core/kernels/processor.hpp"
#include "core/language/problem.hpp"
#include "core/mesh/spawn.hpp"
#include "core/options/elastic.hpp"
#include "core/options/place.hpp"
#include "core/plan/search.hpp"
#include "core/plugin/catalogue.hpp"
#include "core/plugin/shadows.hpp"
#include "core/recipe/commands.hpp"
#include "core/recipe/handed_files.hpp"
#include "core/recipe/layouts.hpp"
#include "core/recipe/paths.hpp"
#include "core/schema/sections.hpp"
#include "core/session/named_tokenizer.hpp"
#include "core/session/run_tokenizer.hpp"
#include "megahost/error.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <exception>
#include <filesystem>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

namespace mh {

namespace {

/// Whether a command asks a trained model, and leaves its weights as they are.
bool only_evaluates(const std::string& command) {
  return command == "eval" || command == "generate" || command == "fill-mask" || command == "embed";
}

constexpr int64_t kMostRanks = 1024; // processes on one machine

void warn_of_shadows(Host& host) {
  for (const auto& sentence : open_shadows(host)) {
    warn(sentence);
  }
}

/// Loads a recipe and opens its plugins.
Loaded load_layers(const LoadOptions& options, Host& host, const RecipeFiles& files) {
  Loaded loaded = load_recipe(files, options);
  open_plugins(loaded, host);
  return loaded;
}

/// The run folder of such a recipe.
std::filesystem::path run_of(const Loaded& loaded) {
  return std::filesystem::path(loaded.file).parent_path();
}

Read read_layers(const LoadOptions& options, Host& host, const RecipeFiles& files) {
  Loaded loaded = load_recipe(files, options);
  Resolved resolved = [&] {
    try {
      return resolve_with_plugins(loaded, host, options.facts);
    } catch (const RecipeError&) { // a plugin that shadows another may be the cause
      warn_of_shadows(host);
      throw;
    }
  }();
  if (loaded.of_run) {
    auto& tokenizer = resolved.recipe.tokenizer;
    const auto& schema = host.require(Kind::tokenizer, tokenizer.use).schema;
    tokenizer.options = tokenizer_of_run(run_of(loaded), schema, tokenizer.options.as_table());
  }
  return {files, std::move(loaded), std::move(resolved)};
}

LoadOptions load_options(const Invocation& invocation, const Facts& facts) {
  LoadOptions options;
  options.roots = recipe_folders();
  options.sets = invocation.all("--set");
  options.facts = facts;
  return options;
}

/// `device.plugin` is a library, too: PJRT's.
void refuse_device_library(const Loaded& loaded) {
  const auto last =
      std::find_if(loaded.layers.rbegin(), loaded.layers.rend(), [](const Layer& layer) {
        return layer.tree.find_path("device.plugin") != nullptr;
      });
  if (last != loaded.layers.rend() && last->name != "--set") {
    throw Error(
        loaded.file +
            " names a library as device.plugin, which is code: that of a run folder, which "
            "others may have made, is not opened unasked",
        "if you trust it, name it yourself: --set device.plugin=FILE; or choose another device by --set device=NAME"
    );
  }
}

/// Whether a recipe was found in the folder that a command was given.
bool is_of_given_run(const Invocation& invocation, const std::string& file) {
  return !invocation.arguments.empty() && !invocation.has("--recipe") &&
         std::filesystem::path(invocation.arguments.front()) / "recipe.toml" == file;
}

/// The length of the run that is typed (`--set train.iters=2`), taken out of `sets`.
std::optional<int64_t> take_length(std::vector<std::string>& ret_sets) {
  std::optional<int64_t> length;
  std::erase_if(ret_sets, [&](const std::string& text) {
    const Layer layer = set_layer(text);
    for (const char* key : {"train.iters", "train.samples"}) {
      if (const Value* value = layer.tree.find_path(key); value != nullptr && value->is_integer()) {
        length = value->as_integer();
        return true;
      }
    }
    return false;
  });
  return length;
}

/// Chunks a stage that the recipe's schedule lets a search try; empty if it does not say.
std::vector<int64_t> chunks_taken(const Recipe& recipe, Host& host) {
  const auto* schedule = host.find(Kind::pipeline_schedule, recipe.parallel.schedule.use);
  std::vector<int64_t> chunks;
  if (schedule != nullptr && schedule->searched) {
    for (const Table& table : schedule->searched({})) {
      for (const auto& entry : table) {
        chunks.push_back(entry.value.as_integer());
      }
    }
  }
  return chunks;
}

void say_left_out(const Host& host) {
  for (const auto& sentence : host.left_out()) {
    warn(sentence);
  }
}

} // namespace

void say_notes(const Read& read, Host& host) {
  for (const auto& sentence : fields_left_out(read.loaded, read.resolved)) {
    warn(sentence);
  }
  for (const auto& sentence : read.loaded.notes) {
    warn(sentence);
  }
  say_left_out(host);
  warn_of_shadows(host);
}

void open_plugins(const Loaded& loaded, Host& host) {
  if (loaded.of_run) {
    refuse_device_library(loaded);
  }
  for (const std::string& plugin : loaded.plugins()) {
    if (loaded.of_run) {
      open_plugin_of_run(plugin, loaded.file, host);
    } else {
      host.load(plugin);
    }
  }
}

void open_plugin_of_run(const std::string& file, const std::string& where, Host& host) {
  const std::filesystem::path real = std::filesystem::weakly_canonical(file);
  const auto& folders = host.folders();
  if (!host.is_open(real) &&
      std::find(folders.begin(), folders.end(), real.parent_path()) == folders.end()) {
    throw Error(
        where + " names the plugin " + file +
            ", which is code: that of a run folder, which others may have made, is not "
            "opened unasked",
        "if you trust it, name it yourself: --plugin " + shell_word(file)
    );
  }
  host.load(file);
}

Resolved resolve_loaded(const Loaded& loaded, Host& host, const Facts& facts) {
  Resolved resolved;
  try {
    resolved = resolve(loaded, plugin_lookup(host), facts);
  } catch (const Error&) { // what is not known may be what a plugin that is left out offers
    say_left_out(host);
    throw;
  }
  if (resolved.recipe.storage) {
    host.set_storage_options(*resolved.recipe.storage);
  }
  if (!loaded.of_run) { // files would be written where others say
    const Recipe::Data& data = resolved.recipe.data;
    host.set_cache(data.cache, static_cast<uint64_t>(data.cache_limit * 1e9));
  }
  return resolved;
}

Resolved resolve_with_plugins(Loaded& loaded, Host& host, const Facts& facts) {
  open_plugins(loaded, host);
  if (!loaded.of_run) { // a run's own has all that it says
    lay_on_model_from(loaded, host);
  }
  return resolve_loaded(loaded, host, facts);
}

int64_t world_size(const Invocation& invocation, const std::optional<Found>& place) {
  if (place) {
    return place->world.size;
  }
  const auto node = find_node(process_environment());
  if (node && !node->ranks && !invocation.has("--nproc")) {
    throw Error(
        "this pod is node " + std::to_string(node->node) + " of " + std::to_string(node->nodes) +
            ", and how many ranks it starts is left open (PET_NPROC_PER_NODE)",
        "give --nproc, or set nprocPerNode of a PyTorchJob, numProcPerNode of a TrainJob",
        exit_code::communication
    );
  }
  const int64_t otherwise = node ? node->ranks.value_or(1) : 1;
  const int64_t ranks = number_option(invocation, "--nproc", otherwise, /*least=*/1, kMostRanks);
  return node ? ranks * node->nodes : ranks;
}

void require_corpus_in_run(const Read& read) {
  const auto schema = read.resolved.schemas.find("data");
  const Value* data = read.resolved.recipe.tree.find("data");
  if (!read.loaded.of_run || schema == read.resolved.schemas.end() || data == nullptr) {
    return;
  }
  const auto required = [&](const Value& path, const Field& field) {
    if (field.name != "cache") {
      const bool is_list = data->find(field.name)->is_array();
      require_in_run(run_of(read.loaded), "data." + field.name, path, is_list);
    }
    return path;
  };
  Table table = data->as_table();
  change_paths(schema->second, required, table);
}

RecipeFiles recipe_files(const std::string& file, const Facts& facts, bool of_run) {
  if (const std::string bytes = handed_bytes(); !bytes.empty()) {
    if (auto files = unpack_files(file, bytes)) {
      return std::move(*files);
    }
  }
  LoadOptions options;
  options.roots = recipe_folders();
  options.facts = facts;
  options.of_run = of_run;
  return read_recipe_files(file, options);
}

StartedRanks ranks_to_start(const Invocation& invocation, int64_t ranks) {
  StartedRanks started{.count = ranks, .world = ranks, .words = invocation.command_line};
  if (const auto node = find_node(process_environment())) {
    started.count = ranks / node->nodes;
    started.first = node->node * started.count;
    started.master_address = node->master_address;
    started.master_port = node->master_port;
  }
  return started;
}

int run_as_ranks(
    const Invocation& invocation, int64_t ranks, double hang_after, const RecipeFiles& files
) {
  const std::string handed = pack_files(invocation.arguments.front(), files);
  return run_as_ranks(ranks_to_start(invocation, ranks), hang_after, handed);
}

namespace {

/// Reads a recipe whose own layout fits the ranks, or else with the first of `elastic` that does.
///
/// Throws:  what its own layout is refused for, where none fits
Read read_fitting(
    const Invocation& invocation,
    Host& host,
    const RecipeFiles& files,
    const std::vector<Layer>& layers,
    const Facts& facts,
    const std::vector<Layout>& elastic
) {
  const auto under = [&](const Layout& layout) {
    std::vector<Layer> all = layers;
    for (const std::string& set : layout.sets) {
      all.push_back(set_layer(set, "parallel.elastic"));
    }
    return read_resolved(invocation, host, files, std::move(all), facts);
  };
  const auto fits = [&](const Read& read) {
    return read.resolved.recipe.parallel.ranks() <= facts.world;
  };
  std::exception_ptr refused; // ranks that are left over are refused, those that lack are not
  std::optional<Read> own;
  try {
    own = under({});
    if (elastic.empty() || fits(*own)) {
      return std::move(*own);
    }
  } catch (const RecipeError&) {
    refused = std::current_exception();
  }
  const auto searched = [&]() -> std::optional<Layout> {
    Invocation asked = invocation;
    Facts alone = facts;
    alone.world = 1;
    auto& sets = asked.options["--set"];
    for (std::string& set : one_rank_sets(host)) {
      sets.push_back(std::move(set));
    }
    return searched_layout(read_resolved(asked, host, files, layers, alone), host, facts);
  };
  for (const Layout& given : elastic) {
    try {
      const std::optional<Layout> found = given.sets.empty() ? searched() : given;
      if (!found) {
        continue;
      }
      const Layout& layout = *found;
      Read read = under(layout);
      if (fits(read)) {
        read.loaded.notes.push_back(
            "the recipe's own layout does not fit " + counted(facts.world, "rank") +
            ": its parallel.elastic \"" + layout.text + "\" does"
        );
        return read;
      }
    } catch (const RecipeError&) { // nor does this one
    }
  }
  if (refused) {
    std::rethrow_exception(refused);
  }
  return std::move(*own);
}

} // namespace

Read read_resolved(
    const Invocation& invocation, Host& host, const std::string& file, const LayersOver& layers
) {
  Facts facts{
      .bf16 = this_processor().bf16(),
      .world = world_size(invocation, place_without_plugins(invocation)),
      .trains = !only_evaluates(invocation.command)};
  const RecipeFiles files = recipe_files(file, facts, is_of_given_run(invocation, file));
  const Loaded asked = load_layers(load_options(invocation, facts), host, files);
  auto place = find_place(invocation, host, resolve_launcher(asked, plugin_lookup(host)));
  // A run's recipe is asked of one rank, however many have copies of its model; `eval` keeps its layout.
  const bool copies = only_evaluates(invocation.command) && invocation.command != "eval";
  facts.world = copies ? 1 : world_size(invocation, place);
  auto over = layers ? layers(asked.merged) : std::vector<Layer>();
  Read read =
      read_fitting(invocation, host, files, over, facts, elastic_layouts(invocation, asked.merged));
  read.place = std::move(place);
  if (!is_spawned_rank() && (!read.place || read.place->world.rank == 0)) { // once for a run
    say_notes(read, host);
  }
  return read;
}

Read read_resolved(
    const Invocation& invocation,
    Host& host,
    const RecipeFiles& files,
    std::vector<Layer> layers,
    const Facts& facts
) {
  LoadOptions options = load_options(invocation, facts);
  if (invocation.has("--scale")) {
    // A recipe that is too small for these ranks is made to fit them, and a schedule of its own
    // that is longer than the run that is typed, this run.
    LoadOptions alone = options;
    alone.facts.world = 1;
    const auto length = take_length(alone.sets);
    const Recipe whole = read_layers(alone, host, files).resolved.recipe;
    options.layers = {scale_recipe(
        whole.tree,
        plugin_lookup(host),
        options.facts.world,
        {.length = length, .chunks = chunks_taken(whole, host)}
    )};
  }
  options.layers.insert(options.layers.end(), layers.begin(), layers.end());
  return read_layers(options, host, files);
}

WeightsWanted weights_wanted(const Invocation& invocation) {
  WeightsWanted wanted{
      .format = invocation.value("--weights-format"),
      .allow_change = invocation.all("--allow-change")};
  if (invocation.has("--step")) {
    wanted.step = number_option(invocation, "--step", 0, 0, std::numeric_limits<int64_t>::max());
  }
  return wanted;
}

std::unique_ptr<Tokenizer> given_tokenizer(const Invocation& invocation, Host& host) {
  if (invocation.has("--recipe")) {
    if (invocation.has("--tokenizer")) {
      throw Error(
          "--tokenizer and --recipe both name a tokenizer",
          "give one of them, or --set tokenizer.use"
      );
    }
    const auto recipe =
        read_resolved(invocation, host, invocation.value("--recipe")).resolved.recipe;
    return std::make_unique<NamedTokenizer>(host.make<Tokenizer>(recipe.tokenizer));
  }
  if (!invocation.has("--tokenizer")) {
    return nullptr;
  }
  Value given = Table{{"tokenizer", Table{{"use", invocation.value("--tokenizer")}}}};
  for (const std::string& text : invocation.all("--set")) {
    const Layer layer = set_layer(text);
    if (layer.tree.find("storage") != nullptr || layer.tree.find("data") != nullptr) {
      continue; // give_storage_options takes it
    }
    if (layer.tree.find("tokenizer") == nullptr) {
      throw Error(
          "--set " + text + " sets no option of the tokenizer",
          "write --set tokenizer.KEY=VALUE; `megahost plugins show " +
              invocation.value("--tokenizer") + "` lists the keys"
      );
    }
    given = merge(given, layer.tree);
  }
  Table options = given.find("tokenizer")->as_table();
  const std::string use = options.find("use")->as_string();
  options.erase("use");
  return std::make_unique<NamedTokenizer>(host.make<Tokenizer>(use, options));
}

namespace {

template <class Number>
Number read_number(
    const Invocation& invocation,
    const std::string& option,
    Number otherwise,
    Number least,
    Number most
) {
  if (!invocation.has(option)) {
    return otherwise;
  }
  const std::string text = invocation.value(option);
  Number number{};
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc() || end != text.data() + text.size() ||
      !(number >= least && number <= most)) {
    const auto bound = [](Number value) { return nlohmann::json(value).dump(); };
    const std::string what = std::is_integral_v<Number> ? " is no whole number" : " is no number";
    throw Error(
        option + " " + text + what +
            (most < std::numeric_limits<Number>::max()
                 ? " from " + bound(least) + " to " + bound(most)
                 : " from " + bound(least) + " on"),
        "see megahost " + invocation.command + " --help"
    );
  }
  return number;
}

} // namespace

int64_t number_option(
    const Invocation& invocation,
    const std::string& option,
    int64_t otherwise,
    int64_t least,
    int64_t most
) {
  return read_number(invocation, option, otherwise, least, most);
}

double real_option(
    const Invocation& invocation,
    const std::string& option,
    double otherwise,
    double least,
    double most
) {
  return read_number(invocation, option, otherwise, least, most);
}

} // namespace mh
