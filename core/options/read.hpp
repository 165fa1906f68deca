#pragma once
/// The choices of a command line: the recipe of an invocation, and numbers of its options.

#include "core/cli/invocation.hpp"
#include "core/mesh/launchers.hpp"
#include "core/mesh/spawn.hpp"
#include "core/recipe/load.hpp"
#include "core/recipe/resolve.hpp"
#include "core/train/given_weights.hpp"
#include "megahost/host.hpp"
#include "megahost/tokenizer.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mh {

/// A recipe, the layers that it was made of, and this process's place in a run where it is one of
/// several (place.hpp).
struct Read {
  RecipeFiles files;
  Loaded loaded;
  Resolved resolved;
  std::optional<Found> place{};
};

/// Ranks of the run in which this process has this place, or which it is asked to start: by --nproc,
/// or as one node of several (`find_node`), each of which starts the same number.
///
/// Throws:  mh::Error if --nproc is no number of processes, or a node's ranks are not said
[[nodiscard]] int64_t world_size(const Invocation& invocation, const std::optional<Found>& place);

/// The files of a recipe, evaluated. A Lua recipe runs here, once for all that a command makes of
/// it and for all ranks that it starts.
///
/// of_run:  as RecipeFiles says
/// Throws:  mh::Error, RecipeError
[[nodiscard]] RecipeFiles
recipe_files(const std::string& file, const Facts& facts, bool of_run = false);

/// Refuses the files of a corpus that the recipe of a run folder names, as `require_in_run`.
void require_corpus_in_run(const Read& read);

/// The start of so many ranks of this command, or this node's of them.
[[nodiscard]] StartedRanks ranks_to_start(const Invocation& invocation, int64_t ranks);

/// Runs this command as so many ranks, or as this node's of them, which are handed the recipe's
/// files; a failure is shown.
///
/// Returns: the exit status for the whole
[[nodiscard]] int run_as_ranks(
    const Invocation& invocation, int64_t ranks, double hang_after, const RecipeFiles& files
);

/// Layers of a command over a recipe, of which it gets what files and --set say.
using LayersOver = std::function<std::vector<Layer>(const Value& recipe)>;

/// Reads a recipe: files, its plugins, this process's place by the launcher that it names, --scale
/// if it was given, `layers`, --set, its plugins' schemas.
///
/// Throws:  mh::Error, RecipeError
[[nodiscard]] Read read_resolved(
    const Invocation& invocation, Host& host, const std::string& file, const LayersOver& layers = {}
);

/// Warns a person of what in a recipe does nothing, and of plugins that were left out.
void say_notes(const Read& read, Host& host);

/// The same as above of files that are evaluated, for the machine that `facts` describe.
[[nodiscard]] Read read_resolved(
    const Invocation& invocation,
    Host& host,
    const RecipeFiles& files,
    std::vector<Layer> layers,
    const Facts& facts
);

/// Opens the plugins that a recipe names by file.
///
/// Throws:  mh::Error; for the recipe of a run folder as `open_plugin_of_run`
void open_plugins(const Loaded& loaded, Host& host);

/// Opens a plugin that a run folder names, `where` in words: one that is open already or lies in the
/// search path. Any other is code that whoever made the folder chose.
///
/// Throws:  mh::Error with --plugin as what to do
void open_plugin_of_run(const std::string& file, const std::string& where, Host& host);

/// Resolves merged layers with the schemas of the plugins that the host knows.
///
/// Throws:  RecipeError
[[nodiscard]] Resolved resolve_loaded(const Loaded& loaded, Host& host, const Facts& facts);

/// Resolves a recipe as it was loaded, after its plugins are opened and the model of `model.from`
/// is laid below it.
///
/// Throws:  mh::Error, RecipeError
[[nodiscard]] Resolved resolve_with_plugins(Loaded& loaded, Host& host, const Facts& facts);

/// The tokenizer of --recipe, or else that of --tokenizer with the options that --set gives it;
/// null if neither is there.
///
/// Throws:  mh::Error, RecipeError
[[nodiscard]] std::unique_ptr<Tokenizer> given_tokenizer(const Invocation& invocation, Host& host);

/// The choices of --weights-format, --step and --allow-change for the weights that a command is
/// given.
///
/// Throws:  mh::Error
[[nodiscard]] WeightsWanted weights_wanted(const Invocation& invocation);

/// Gives a storage the options of --set storage.KEY, of a command that reads no recipe: the one that
/// storage.use names, or that of the command's first path in a store; and the folder for copies what
/// --set data.cache and data.cache_limit say.
///
/// Throws:  mh::Error
void give_storage_options(const Invocation& invocation, Host& host);

/// The whole number that an option was given, or the real one; `otherwise` if it was not.
///
/// Throws:  mh::Error if it is none, or not from `least` to `most`
[[nodiscard]] int64_t number_option(
    const Invocation& invocation,
    const std::string& option,
    int64_t otherwise,
    int64_t least,
    int64_t most
);
[[nodiscard]] double real_option(
    const Invocation& invocation,
    const std::string& option,
    double otherwise,
    double least,
    double most
);

} // namespace mh
