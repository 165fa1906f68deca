#include "core/base/number_text.hpp"
#include "core/base/text.hpp"
#include "core/bench/gemm_choice.hpp"
#include "core/bench/machine.hpp"
#include "core/checkpoint/detect_format.hpp"
#include "core/checkpoint/run_folder.hpp"
#include "core/commands/commands.hpp"
#include "core/commands/preflight.hpp"
#include "core/commands/restarts.hpp"
#include "core/commands/run_output.hpp"
#include "core/draw/report.hpp"
#include "core/mesh/layout.hpp"
#include "core/mesh/processes.hpp"
#include "core/mesh/rank_reports.hpp"
#include "core/options/place.hpp"
#include "core/plan/stage_record.hpp"
#include "core/program/runner.hpp"
#include "core/recipe/changes.hpp"
#include "core/recipe/handed_files.hpp"
#include "core/records/journal.hpp"
#include "core/runs/run_copy.hpp"
#include "core/runs/train_job.hpp"
#include "core/session/session.hpp"
#include "core/train/checkpointing.hpp"
#include "core/train/train.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <limits>
#include <optional>
#include <utility>

namespace mh {

namespace {

/// The options that stand for a key of the recipe. --run-dir leaves checkpoints where they are if
/// the recipe parts them from its run folder.
std::vector<Layer> option_layers(const Invocation& invocation, const Value& recipe) {
  std::vector<Layer> layers;
  const auto add = [&](const char* option, const char* section, const char* key, Value value) {
    if (invocation.has(option)) {
      value.origin.source = std::make_shared<const Source>(Source{option, "", option});
      layers.push_back({option, Table{{section, Table{{key, std::move(value)}}}}});
    }
  };
  const auto said = [&](const std::string& key) -> std::optional<std::string> { // by --set
    const auto& sets = invocation.all("--set");
    const auto is_it = [&](const std::string& set) { return set.starts_with(key + "="); };
    const auto found = std::find_if(sets.rbegin(), sets.rend(), is_it);
    return found == sets.rend() ? std::nullopt : std::optional(found->substr(key.size() + 1));
  };
  const bool option = invocation.has("--run-dir");
  if (option && said("run_dir")) {
    throw Error("--run-dir and --set run_dir both name the run's folder", "leave one of them out");
  }
  const Value* run_dir = recipe.find("run_dir");
  const Value* saves = recipe.find_path("checkpoint.dir");
  const bool parts = (run_dir != nullptr && !run_dir->is_null()) || said("checkpoint.dir") ||
                     (saves != nullptr && saves->is_string() && scheme_of(saves->as_string()));
  if (option && (!parts || invocation.has("--scale"))) {
    add("--run-dir", "checkpoint", "dir", invocation.value("--run-dir"));
  } else if (option) {
    layers.push_back({"--run-dir", Table{{"run_dir", invocation.value("--run-dir")}}});
  }
  const std::string named = option ? invocation.value("--run-dir") : said("run_dir").value_or("");
  const std::string kept =
      invocation.has("--resume") && !named.empty() ? checkpoints_apart(named) : "";
  if (!kept.empty()) { // the run that goes on says where they are
    layers.push_back({"--resume", Table{{"checkpoint", Table{{"dir", kept}}}, {"run_dir", named}}});
  }
  add("--log-format", "log", "format", invocation.value("--log-format"));
  add("--deterministic", "train", "deterministic", true);
  add("--weights", "load", "from", invocation.value("--weights"));
  add("--weights-format", "load", "format", invocation.value("--weights-format"));
  const Value* from = recipe.find_path("load.from");
  if (const auto step = weights_wanted(invocation).step) {
    if (!invocation.has("--weights") && from == nullptr && !said("load.from")) {
      throw Error(
          "--step says which of a run's checkpoints --weights takes, and --weights is not given",
          "a run that goes on takes its newest one; to branch off an earlier one, begin a new run "
          "with --weights DIR --step N"
      );
    }
    add("--step", "load", "step", *step);
  }
  return layers;
}

/// How `run` and `eval` are told the same recipe again, word by word.
std::vector<std::string> recipe_words(const Invocation& invocation, const Recipe& recipe) {
  std::vector<std::string> words{invocation.arguments.front()};
  if (invocation.has("--scale")) {
    words.emplace_back("--scale");
  }
  const auto add = [&](const char* option, const char* given, const std::string& key) {
    for (const std::string& value : invocation.all(given)) {
      words.emplace_back(option);
      words.push_back(key + value);
    }
  };
  add("--plugin", "--plugin", "");
  add("--set", "--run-dir", recipe.run_dir ? "run_dir=" : "checkpoint.dir=");
  add("--set", "--log-format", "log.format=");
  if (invocation.has("--deterministic")) {
    words.insert(words.end(), {"--set", "train.deterministic=true"});
  }
  add("--nproc", "--nproc", "");
  add("--set", "--set", "");
  return words;
}

Resume resume_of(const Invocation& invocation, const Recipe& recipe) {
  if (!invocation.has("--resume") && recipe.checkpoint.automatic) {
    return Resume::if_any;
  }
  if (!invocation.has("--resume")) {
    if (invocation.has("--allow-change") && recipe.load.from.empty()) {
      throw Error(
          "--allow-change is for a run that goes on from a checkpoint, or starts from weights",
          "give --resume or --weights, too; a new run takes any recipe"
      );
    }
    return Resume::no;
  }
  return invocation.value("--resume") == "auto" ? Resume::if_any : Resume::yes;
}

/// Whether the command line names the run's folder: by an option, or by the recipe that lies there.
bool names_folder(const Invocation& invocation, const Recipe& recipe) {
  const auto sets_folder = [](const std::string& set) {
    return set.starts_with("checkpoint.dir=") || set.starts_with("run_dir=");
  };
  const auto& sets = invocation.all("--set");
  std::error_code ignored;
  return invocation.has("--run-dir") || std::ranges::any_of(sets, sets_folder) ||
         std::filesystem::equivalent(
             invocation.arguments.front(),
             std::filesystem::path(recipe.run_folder()) / "recipe.toml",
             ignored
         );
}

/// The folder of a run that goes on. A launcher that starts a run again (`--resume=auto`) names what
/// the first start was told: not the folder that it took.
std::filesystem::path resumed_folder(const Invocation& invocation, const Recipe& recipe) {
  const bool named =
      resume_of(invocation, recipe) == Resume::yes && names_folder(invocation, recipe);
  return run_folder(recipe.run_folder(), /*resume=*/true, named);
}

/// Refuses a run that cannot succeed before data are read and ranks are started.
void require_folders(const Invocation& invocation, const Recipe& recipe, Host& host) {
  const Resume resume = resume_of(invocation, recipe);
  if (!recipe.load.from.empty() && resume == Resume::no) {
    (void)format_of(recipe.load.from, host, recipe.load.format);
  }
  if (resume == Resume::yes) {
    const auto folder = resumed_folder(invocation, recipe);
    if (!std::filesystem::exists(folder)) {
      const auto format = checkpoint_format(recipe, host);
      require_checkpoint(*format, checkpoint_folder(recipe, folder), [&] {
        return moved_run(recipe, *format, invocation.arguments.front());
      });
    }
  }
}

RestartTerms restart_terms(const Invocation& invocation, const Read& read, int64_t world) {
  constexpr int64_t kMost = 1'000'000;
  const Recipe& recipe = read.resolved.recipe;
  StartedRanks ranks = ranks_to_start(invocation, world);
  if (ranks.count != ranks.world) {
    throw Error(
        "--max-restarts is for a run whose ranks are all on this machine, and this is one node of " +
            std::to_string(ranks.world / ranks.count),
        "leave restarts to what started the nodes, and give --resume=auto",
        exit_code::communication
    );
  }
  return {
      .most = number_option(invocation, "--max-restarts", 0, 0, kMost),
      .folder = resume_of(invocation, recipe) == Resume::no
                    ? run_folder(recipe.run_folder(), /*resume=*/false)
                    : resumed_folder(invocation, recipe),
      .words = invocation.command_line,
      .start = [ranks,
                after = recipe.comm.hang_after,
                files = pack_files(invocation.arguments.front(), read.files)](auto words) mutable {
        ranks.words = std::move(words);
        return run_ranks(ranks, after, files);
      }};
}

/// "tensor 4 x pipeline 2 x data 4".
std::string degrees(const Recipe& recipe, int64_t world) {
  std::string text;
  const MeshShape shape = mesh_shape(recipe, world);
  for (const MeshAxis axis : {MeshAxis::tp, MeshAxis::pp, MeshAxis::cp, MeshAxis::dp}) {
    if (const int64_t ranks = degree(shape, axis); ranks > 1) {
      text +=
          (text.empty() ? "" : " x ") + recipe.parallel.word(axis) + " " + std::to_string(ranks);
    }
  }
  return text;
}

int say_what_is_missing(const Recipe& recipe, const std::string& file, int64_t world) {
  const std::string ranks = std::to_string(recipe.parallel.ranks());
  const std::string start = ": --nproc " + ranks + ", torchrun, srun or mpirun start them";
  std::fprintf(
      stderr,
      "error: %s needs %s ranks (%s), and there %s %ld%s.\n"
      "help: megahost run %s --scale trains the same structure here and now, shrunk to this "
      "machine.\n"
      "help: megahost plan %s says whether it fits and how fast it will be.\n",
      file.c_str(),
      ranks.c_str(),
      degrees(recipe, world).c_str(),
      world == 1 ? "is" : "are",
      world,
      start.c_str(),
      file.c_str(),
      file.c_str()
  );
  return exit_code::recipe;
}

/// The folder, or the one above it that is there already.
std::filesystem::path existing(std::filesystem::path folder) {
  std::error_code ignored;
  while (!folder.empty() && !std::filesystem::is_directory(folder, ignored)) {
    folder = folder.parent_path();
  }
  return folder.empty() ? "." : folder;
}

/// --preflight.
void compare_ranks(const Processes* processes, const Read& read, Host& host) {
  const Recipe& recipe = read.resolved.recipe;
  if (processes == nullptr) {
    warn("--preflight compares ranks, and this run has one");
    return;
  }
  const Device::Args args{.local_rank = processes->world().local_rank};
  const auto device = host.make<Device>(recipe.device, args);
  refuse_faults(preflight(
      *processes,
      *device,
      {.hang_after = recipe.comm.hang_after, .disk = existing(recipe.run_folder())}
  ));
}

/// Refuses a place that cannot take the copy; a run that goes on and has lost its folder gets it back.
void begin_copying(const Invocation& invocation, const Recipe& recipe, Host& host) {
  const std::string& to = invocation.value("--copy-to");
  const bool goes_on = resume_of(invocation, recipe) != Resume::no;
  require_copy_place(host.storage(), to, goes_on);
  if (goes_on) {
    const auto folder = resumed_folder(invocation, recipe);
    if (const int64_t files = restore_run(host.storage(), to, folder); files > 0) {
      std::printf(
          "%s is fetched from its copy %s: %s files\n",
          folder.c_str(),
          to.c_str(),
          grouped(files).c_str()
      );
    }
  }
}

/// --copy-to, of the first rank.
class RunCopying {
public:
  RunCopying(const Recipe& recipe, Host& host, std::string to, Output& output)
      : recipe_(recipe)
      , host_(host)
      , to_(std::move(to))
      , output_(output) {}

  std::filesystem::path folder{}; ///< empty until the run has taken one

  template <class Train>
  TrainSummary after(const Train& train) {
    const TrainSummary summary = [&] {
      try {
        return train();
      } catch (...) {
        try_copy();
        throw;
      }
    }();
    copy();
    return summary;
  }

private:
  void copy() {
    const auto format = checkpoint_format(recipe_, host_);
    const RunCopied copied =
        copy_run(host_.storage(), *format, {folder, checkpoint_folder(recipe_, folder)}, to_);
    output_.line(
        "copied to " + to_ + ": " + grouped(copied.files) + " files, " +
        bytes_text(static_cast<int64_t>(copied.bytes)) +
        (copied.step ? ", with the checkpoint of step " + grouped(*copied.step) : "")
    );
  }

  /// After a failure, which is what the run ends with.
  void try_copy() {
    if (!folder.empty()) {
      try {
        copy();
      } catch (const std::exception& error) {
        output_.warning("the run folder is not copied to " + to_ + ": " + error.what());
      }
    }
  }

  const Recipe& recipe_;
  Host& host_;
  std::string to_;
  Output& output_;
};

} // namespace

int command_run(const Invocation& invocation, Host& host) {
  const std::string& file = invocation.arguments.front();
  const Read read = read_resolved(invocation, host, file, [&](const Value& given) {
    return option_layers(invocation, given);
  });
  const Recipe& given = read.resolved.recipe;
  const auto& place = read.place;
  const int64_t world = world_size(invocation, place);
  std::unique_ptr<Device> device =
      given.parallel.ranks() > 1 && world == 1 ? program::device_of_ranks(given, host) : nullptr;
  const Recipe recipe = device != nullptr ? program::one_rank(given) : given;
  if (recipe.parallel.ranks() > world) {
    return say_what_is_missing(recipe, file, world);
  }
  const bool is_first = !(place && place->world.rank > 0);
  if (invocation.has("--copy-to") && is_first) {
    begin_copying(invocation, recipe, host);
  }
  if (!place) {
    require_folders(invocation, recipe, host);
  }
  if (!place && invocation.has("--max-restarts")) {
    return run_with_restarts(restart_terms(invocation, read, world));
  }
  if (!place && world > 1) {
    return run_as_ranks(invocation, world, recipe.comm.hang_after, read.files);
  }
  const auto processes = meet_ranks(place, recipe, host);
  if (invocation.has("--preflight")) {
    compare_ranks(processes.get(), read, host);
  }
  check_allowed(invocation.all("--allow-change"), read.resolved.schemas);
  std::optional<StepRange> profile;
  if (invocation.has("--profile")) {
    profile = parse_steps(invocation.value("--profile"));
  }
  RunOutput output;
  std::optional<RunCopying> copying;
  if (invocation.has("--copy-to") && is_first) {
    copying.emplace(recipe, host, invocation.value("--copy-to"), output);
  }
  std::optional<TrainJobReports> reports; // the last one when the run is over
  TrainOptions options{
      .resume = resume_of(invocation, recipe),
      .allow_change = invocation.all("--allow-change"),
      .folder_named = names_folder(invocation, recipe),
      .recipe_text = show_recipe(recipe, RecipeFormat::toml, /*origins=*/true),
      .program = invocation.program,
      .recipe_words = recipe_words(invocation, recipe),
      .age = process_age(),
      .debug = invocation.has("--debug"),
      .profile = profile,
      .processes = processes.get(),
      .checking = invocation.has("--checking"),
      .step_peak = step_peak(
          {.recipe = recipe, .host = host, .world = world, .device = planned_device(recipe, host)}
      ),
      .started =
          [&](const std::filesystem::path& folder) {
            report_phase(RankPhase::started);
            if (copying) {
              copying->folder = folder;
            }
            if (const auto server = train_job_server(); server && is_first) {
              reports.emplace(*server, folder, host);
            }
          },
      .measured_peak = [ranks = place ? place->world.local_size : 1](at::ScalarType type
                       ) { return measured_peak(type, ranks); },
      .gemm = [] { return chosen_gemm(); },
      .device_step = [&given](
                         Session& session, Weights& weights, Host& plugins
                     ) { return program::device_step(given, session, weights, plugins); },
      .device = device != nullptr ? std::function([&device] { return std::move(device); })
                                  : std::function<std::unique_ptr<Device>()>(),
  };
  const auto trained = [&] {
    try {
      return train(recipe, host, options, output);
    } catch (const CollectiveError& error) {
      if (!processes) {
        throw;
      }
      throw processes->explained(error);
    }
  };
  const TrainSummary summary = copying ? copying->after(trained) : trained();
  return summary.reason == "SIGTERM"   ? 128 + SIGTERM
         : summary.reason == "SIGINT"  ? 128 + SIGINT
         : summary.reason == "SIGUSR1" ? 128 + SIGUSR1
                                       : 0;
}

} // namespace mh
