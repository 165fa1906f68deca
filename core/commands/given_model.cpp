#include "core/commands/given_model.hpp"

#include "core/base/text.hpp"
#include "core/bench/gemm_choice.hpp"
#include "core/checkpoint/detect_format.hpp"
#include "core/mesh/spawn.hpp"
#include "core/options/place.hpp"
#include "core/options/read.hpp"
#include "megahost/error.hpp"

#include <filesystem>
#include <string>
#include <vector>

namespace mh {

namespace {

std::string recipe_file(
    const Invocation& invocation, const std::filesystem::path& folder, const FolderFormat& found
) {
  if (invocation.has("--recipe")) {
    return invocation.value("--recipe");
  }
  const auto own = folder / "recipe.toml";
  if (std::filesystem::is_regular_file(own)) {
    return own.string();
  }
  const auto steps = steps_of(*found.format, folder);
  const bool is_run = steps.has_value();
  throw Error(
      folder.string() + " holds no recipe.toml" +
          (is_run ? "" : ": it is a " + found.format->about()),
      is_run ? "give the folder that megahost run named, or its recipe.toml by --recipe"
             : "megahost recipe from-hf " + shell_word(folder.string()) +
                   " -o model.toml writes one for --recipe model.toml",
      exit_code::data
  );
}

} // namespace

GivenModel given_model(const Invocation& invocation, Host& host, bool corpus) {
  const std::filesystem::path folder = invocation.arguments.front();
  const FolderFormat found = format_of(folder, host, invocation.value("--weights-format"));
  // The tokens over a cache are those without it in float32; bf16 rounds the two ways apart.
  const std::vector<Layer> exact = {{"generate", Table{{"precision", "fp32"}}}};
  const Read read =
      read_resolved(invocation, host, recipe_file(invocation, folder, found), [&](const Value&) {
        return exact;
      });
  if (corpus) {
    require_corpus_in_run(read);
  }
  Recipe recipe = read.resolved.recipe;
  recipe.parallel = {}; // one rank, however many trained it, or copies
  recipe.batch = {};
  GivenModel given;
  if (invocation.has("--nproc")) {
    recipe.batch.global = world_size(invocation, read.place); // a sample for each copy
    given.processes = meet_ranks(read.place, recipe, host);
  }
  given.session = make_session(
      recipe,
      host,
      {.corpus = corpus, .initialise = false, .trains = false, .processes = given.processes.get()}
  );
  (void)given.session->share_gemm([] { return chosen_gemm(UnknownMachine::own); });
  WeightsWanted wanted = weights_wanted(invocation);
  wanted.format = found.name;
  given.weights = load_weights(folder, *given.session, host, wanted);
  return given;
}

std::optional<int> run_as_given_ranks(const Invocation& invocation) {
  if (!invocation.has("--nproc") || is_spawned_rank()) {
    return std::nullopt;
  }
  const int64_t ranks = world_size(invocation, std::nullopt);
  return ranks == 1 ? std::nullopt : std::optional(run_as_ranks(ranks_to_start(invocation, ranks)));
}

} // namespace mh
