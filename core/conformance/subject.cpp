#include "core/conformance/subject.hpp"

#include "core/base/folders.hpp"
#include "core/checkpoint/model_from.hpp"
#include "core/conformance/layout_trial_file.hpp"
#include "core/draw/report.hpp"
#include "core/mesh/processes.hpp"
#include "core/options/read.hpp"
#include "core/plugin/catalogue.hpp"
#include "core/recipe/handed_files.hpp"
#include "core/schema/sections.hpp"
#include "core/session/session.hpp"
#include "core/step/sample_arrays.hpp"
#include "core/storage/temporary_folder.hpp"
#include "megahost/error.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>

namespace mh {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// Samples of a microbatch over all data-parallel ranks, where a model compares them: at least.
constexpr int64_t kFewest = 2;

bool sets_micro(const std::string& set) {
  return set.starts_with("batch.micro=");
}

int64_t data_ranks(const Recipe& recipe) {
  return mesh_shape(recipe, recipe.parallel.ranks()).dp;
}

constexpr const char* kTask = "MEGAHOST_CHECK"; // what a rank that is a process has to do

/// The samples of a step: as many as ranks may want for themselves, the same for all layouts.
int64_t samples_of(const std::string& layouts) {
  constexpr int64_t kFew = 4, kMost = 8;
  if (layouts == "all") {
    return kMost;
  }
  for (const Layout& layout : parse_layouts(layouts)) {
    int64_t ranks = 1;
    for (const std::string& set : layout.sets) {
      ranks *= std::max<int64_t>(1, std::atoll(set.substr(set.find('=') + 1).c_str()));
    }
    if (ranks > kFew) {
      return kMost;
    }
  }
  return kFew;
}

} // namespace

Subject::Subject(const Invocation& invocation, Host& host)
    : invocation_(invocation)
    , host_(host)
    , samples_(samples_of(invocation.value("--layouts", "all"))) {
  if (invocation.arguments.empty() == !invocation.has("--model")) {
    throw Error(
        "megahost check takes a RECIPE or --model PLUGIN, one of them",
        "megahost check recipes/quickstart.lua"
    );
  }
  if (!invocation.arguments.empty()) {
    files_ = recipe_files(invocation.arguments.front(), {});
  }
}

StartedRanks Subject::ranks(int64_t count) const {
  return {.count = count, .world = count, .words = invocation_.command_line};
}

std::string Subject::handed() const {
  return files_ ? pack_files(invocation_.arguments.front(), *files_) : "";
}

Resolved Subject::under(const Layout& layout) const {
  Resolved alone = resolved(layout, Data::made_up);
  const int64_t ranks = data_ranks(alone.recipe);
  const bool given = std::ranges::any_of(layout.sets, sets_micro) ||
                     std::ranges::any_of(invocation_.all("--set"), sets_micro);
  if (given || !compares_samples(alone.recipe)) {
    return alone;
  }
  Layout several = layout;
  several.sets.push_back("batch.micro=" + std::to_string(std::max(kFewest, ranks) / ranks));
  return resolved(several, Data::made_up);
}

Resolved Subject::one_rank(const Layout& layout) const {
  Layout others;
  for (const std::string& set : layout.sets) {
    if (!set.starts_with("parallel.")) {
      others.sets.push_back(set);
    }
  }
  const Recipe whole = under(layout).recipe;
  if (compares_samples(whole)) {
    std::erase_if(others.sets, sets_micro);
    others.sets.push_back("batch.micro=" + std::to_string(whole.batch.micro * data_ranks(whole)));
  }
  return resolved(others, Data::made_up);
}

bool Subject::compares_samples(const Recipe& recipe) const {
  const Value* vocab = recipe.model.options.find("vocab");
  const auto architecture = host_.make<Architecture>(
      recipe.model,
      {.vocab = vocab != nullptr && vocab->is_integer() ? vocab->as_integer() : 1,
       .seq_length = recipe.model.seq_length}
  );
  return mh::compares_samples(architecture->arrays(recipe.model.seq_length));
}

Resolved Subject::with_data() const {
  return resolved({}, Data::of_recipe);
}

Resolved Subject::resolved(const Layout& layout, Data data) const {
  LoadOptions options;
  options.roots = recipe_folders();
  options.sets = invocation_.all("--set");
  options.layout = layout.sets;
  Loaded given = base(options);
  open_plugins(given, host_);
  lay_on_model_from(given, host_);
  const Value* use = given.merged.find_path("model.use");
  if (use != nullptr && use->is_string()) {
    static_cast<void>(host_.require(Kind::architecture, use->as_string(), use->origin));
    Layer layer = check_layer(given.merged, plugin_lookup(host_));
    layer.tree.as_table().find("batch")->as_table().set("global", samples_);
    if (data == Data::made_up) { // whose options are not the recipe's
      std::erase_if(options.sets, [](const std::string& set) {
        const std::string section = set.substr(0, set.find_first_of(".="));
        return section == "data" || section == "tokenizer";
      });
    } else {
      Table& small = layer.tree.as_table();
      small.erase("data");
      small.erase("tokenizer");
      small.find("model")->as_table().erase("vocab");
    }
    options.layers.push_back(std::move(layer));
  }
  Loaded loaded = base(options);
  // The small batch need not be one to learn from.
  return resolve_with_plugins(loaded, host_, {.bf16 = false, .world = 1, .trains = false});
}

Loaded Subject::base(LoadOptions options) const {
  if (files_) {
    return load_recipe(*files_, options);
  }
  const std::string model = invocation_.value("--model");
  Table tree{{"name", "check"}, {"model", Table{{"use", model}}}, {"train", Table{{"iters", 100}}}};
  return merged("--model " + model, {{"--model", std::move(tree)}}, options);
}

TrialOptions TrialSubject::options(const Precision& precision) const {
  return {
      .dtype = precision.dtype,
      .corpus = corpus.get(),
      .arrays = arrays,
      .recipes_optimizer = recipes_optimizer};
}

TrialSubject trial_subject(const Subject& subject, Host& host) {
  TrialSubject made;
  if (!subject.is_recipe()) {
    made.description = "samples and optimizers, sgd and adamw, of the check's own";
    return made;
  }
  const Recipe recipe = subject.with_data().recipe;
  made.recipes_optimizer = true;
  const std::string optimizer = "optimizer " + recipe.optimizer.use;
  try {
    made.tokenizer = host.make<Tokenizer>(recipe.tokenizer);
    const Value* vocab = recipe.model.options.find("vocab");
    const bool given = vocab != nullptr && vocab->is_integer();
    const auto& data = recipe.data;
    const auto architecture = host.make<Architecture>(
        recipe.model, {.vocab = made.tokenizer->vocab(), .seq_length = recipe.model.seq_length}
    );
    const Corpus::Args args{
        .tokenizer = made.tokenizer.get(),
        .seq_length = recipe.model.seq_length,
        .vocab = std::max(made.tokenizer->vocab(), given ? vocab->as_integer() : 0),
        .seed = static_cast<uint64_t>(recipe.train.seed),
        .samples = recipe.batch.global * TrialOptions().steps,
        .sequences = architecture->sequences()};
    made.arrays = declared_arrays(host.require(Kind::corpus, data.use), data.options, args);
    made.corpus = host.make<Corpus>(data, args);
    made.description = "corpus " + recipe.data.use + " with tokenizer " + recipe.tokenizer.use +
                       ", " + optimizer + ", of the recipe";
  } catch (const Error& error) {
    made.corpus = nullptr;
    made.description = optimizer +
                       " of the recipe; samples of the check's own, as its corpus is not "
                       "here: " +
                       error.what();
  }
  return made;
}

/// Runs a layout as so many processes of this same command, and reads what they left behind.
TrialResult trial_on_processes(
    const Subject& subject, const Layout& layout, const Precision& precision, int64_t ranks
) {
  const TemporaryFolder folder("megahost-check");
  setenv(kTask, Json{layout.text, precision.name, folder.path().string()}.dump().c_str(), 1);
  const int status = run_as_ranks(subject.ranks(ranks), /*hang_after=*/10, subject.handed());
  unsetenv(kTask);
  if (status != 0) {
    throw Error("its processes failed (status " + std::to_string(status) + ")", "", status);
  }
  return read_trial(folder.path());
}

/// This process is one rank of a trial.
int run_rank(const Subject& subject, Host& host) {
  const char* text = std::getenv(kTask);
  const auto task = Json::parse(text == nullptr ? "" : text, nullptr, false);
  const auto found = find_world(process_environment());
  if (!task.is_array() || !found) {
    throw Error(
        "megahost check starts its own ranks", "leave the launcher out; --processes uses processes"
    );
  }
  const auto* precision = std::find_if(kPrecisions.begin(), kPrecisions.end(), [&](const auto& p) {
    return task[1] == p.name;
  });
  const std::string layout = task[0];
  const Recipe recipe =
      subject.under(layout.empty() ? Layout{} : parse_layouts(layout).front()).recipe;
  const Processes processes(
      *found, std::chrono::milliseconds(static_cast<int64_t>(1e3 * recipe.comm.timeout))
  );
  const Mesh mesh(
      mesh_shape(recipe, found->world.size),
      found->world.rank,
      processes.make_backend(),
      recipe.parallel.order
  );
  const auto watch = processes.watch(mesh.log(), recipe.comm.hang_after, warn);
  TrialResult result;
  const TrialSubject trial = trial_subject(subject, host);
  run_trial(recipe, host, {.mesh = &mesh}, trial.options(*precision), result);
  write_trial(result, mesh, task[2].get<std::string>());
  return 0;
}

} // namespace mh
