#pragma once
/// The commands that need plugins or LibTorch, one file each.

#include "core/host/invocation.hpp"
#include "core/mesh/launchers.hpp"
#include "core/recipe/commands.hpp"
#include "core/recipe/import/import.hpp"
#include "megahost/host.hpp"
#include "megahost/tokenizer.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mh {

int command_run(const Invocation& invocation, Host& host);
int command_eval(const Invocation& invocation, Host& host);
int command_generate(const Invocation& invocation, Host& host);
int command_sweep(const Invocation& invocation, Host& host);
int command_plot(const Invocation& invocation, Host& host);
int command_compare(const Invocation& invocation, Host& host);
int command_check(const Invocation& invocation, Host& host);
int command_mesh(const Invocation& invocation, Host& host);
int command_plan(const Invocation& invocation, Host& host);
int command_schedule(const Invocation& invocation, Host& host);
int command_bench(const Invocation& invocation, Host& host);
int command_bench_step(const Invocation& invocation, Host& host);
int command_bench_data(const Invocation& invocation, Host& host);
int command_bench_gemm(const Invocation& invocation, Host& host);
int command_bench_attention(const Invocation& invocation, Host& host);
int command_bench_memory(const Invocation& invocation, Host& host);
int command_bench_comm(const Invocation& invocation, Host& host);
int command_bench_ops(const Invocation& invocation, Host& host);
int command_recipe_check(const Invocation& invocation, Host& host);
int command_recipe_show(const Invocation& invocation, Host& host);
int command_recipe_explain(const Invocation& invocation, Host& host);
int command_recipe_diff(const Invocation& invocation, Host& host);
int command_recipe_import_args(const Invocation& invocation, Host& host);
int command_recipe_from_hf(const Invocation& invocation, Host& host);
int command_presets(const Invocation& invocation, Host& host);
int command_presets_show(const Invocation& invocation, Host& host);
int command_data_prepare(const Invocation& invocation, Host& host);
int command_data_inspect(const Invocation& invocation, Host& host);
int command_recipe_schema(const Invocation& invocation, Host& host);
int command_recipe_stubs(const Invocation& invocation, Host& host);
int command_plugins(const Invocation& invocation, Host& host);
int command_plugins_check(const Invocation& invocation, Host& host);
int command_plugins_new(const Invocation& invocation, Host& host);
int command_plugins_show(const Invocation& invocation, Host& host);
int command_help(const Invocation& invocation, Host& host);
int command_doctor(const Invocation& invocation, Host& host);
int command_docs(const Invocation& invocation, Host& host);

/// A recipe, the layers that it was made of, and this process's place in a run where it is one of
/// several (see host/place.hpp).
struct Read {
  Loaded loaded;
  Resolved resolved;
  std::optional<Found> place{};
};

/// Ranks of the run in which this process has this place, or which it is asked to start by --nproc.
///
/// Throws:  mh::Error if --nproc is no number of processes
[[nodiscard]] int64_t world_size(const Invocation& invocation, const std::optional<Found>& place);

/// Reads a recipe: files, --scale if it was given, `layers`, --set, its plugins' schemas. `facts`
/// are those of another machine.
///
/// Throws:  mh::Error, RecipeError
[[nodiscard]] Read read_resolved(
    const Invocation& invocation,
    Host& host,
    const std::string& file,
    std::vector<Layer> layers = {},
    const std::optional<Facts>& facts = std::nullopt
);

/// Resolves merged layers with the schemas of the plugins that the host knows.
///
/// Throws:  RecipeError
[[nodiscard]] Resolved resolve_loaded(const Loaded& loaded, Host& host, const Facts& facts);

/// Ends a command that makes a recipe of what another program says in `from`: refuses what no
/// recipe may say, makes relative paths absolute, as the recipe may lie anywhere, and writes it to
/// the file of -o, or prints it.
///
/// Returns: the file of -o; empty if the recipe was printed
/// Throws:  mh::Error, RecipeError
std::string write_imported(
    const Invocation& invocation, Host& host, ImportedRecipe imported, const std::string& from
);

/// The tokenizer of --recipe, or else that of --tokenizer with the options that --set gives it;
/// null if neither is there.
///
/// Throws:  mh::Error, RecipeError
[[nodiscard]] std::unique_ptr<Tokenizer> given_tokenizer(const Invocation& invocation, Host& host);

/// The whole number that an option was given; `otherwise` if it was not.
///
/// Throws:  mh::Error if it is none, or not from `least` to `most`
[[nodiscard]] int64_t number_option(
    const Invocation& invocation,
    const std::string& option,
    int64_t otherwise,
    int64_t least,
    int64_t most
);

} // namespace mh
