// megahost launch: the jobs that train a recipe on a cluster.

#include "core/base/folders.hpp"
#include "core/base/number_text.hpp"
#include "core/base/text.hpp"
#include "core/commands/commands.hpp"
#include "core/commands/planned.hpp"
#include "core/commands/submit.hpp"
#include "core/draw/report.hpp"
#include "core/launch/write.hpp"
#include "core/plan/hardware.hpp"
#include "core/plan_report/report.hpp"
#include "core/recipe/commands.hpp"
#include "core/storage/file_system.hpp"
#include "core/train/layout_settings.hpp"
#include "megahost/error.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mh {

namespace {

constexpr int64_t kMostNodes = 1 << 17;
constexpr uint64_t kLargestFile = uint64_t{16} << 20;
constexpr std::string_view kHyperPod = "ml."; // before an instance's name there

ReadOptions tables() {
  ReadOptions options;
  options.roots = recipe_folders();
  return options;
}

/// The values that a row of presets/launch.toml gives an option: none for a flag that is off.
std::vector<std::string> option_values(const Value& value) {
  if (value.is_array()) {
    std::vector<std::string> values;
    for (const Value& item : value.as_array()) {
      values.push_back(item.is_string() ? item.as_string() : to_text(item));
    }
    return values;
  }
  if (value.is_boolean()) {
    return value.as_boolean() ? std::vector<std::string>{""} : std::vector<std::string>{};
  }
  return {value.is_string() ? value.as_string() : to_text(value)};
}

/// The invocation with the options of --preset that were not typed.
Invocation with_preset(Invocation invocation) {
  if (!invocation.has("--preset")) {
    return invocation;
  }
  const std::string name = invocation.value("--preset");
  std::vector<std::string> names;
  for (const auto& root : recipe_folders()) {
    const auto file = root / "presets/launch.toml";
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(file, ignored)) {
      continue;
    }
    const Value rows = read_toml(read_source(file, "presets/launch.toml"));
    for (const auto& row : rows.as_table()) {
      names.push_back(row.key);
      if (row.key != name) {
        continue;
      }
      for (const auto& option : row.value.as_table()) {
        const std::string typed = option.key == "o" ? "-o" : "--" + option.key;
        const auto values = option_values(option.value);
        if (option.key != "source" && !invocation.has(typed) && !values.empty()) {
          invocation.options[typed] = values;
        }
      }
      return invocation;
    }
  }
  const auto meant = nearest(name, names);
  throw Error(
      "there is no launch preset \"" + name + "\"",
      meant ? "did you mean " + *meant + "?" : "presets/launch.toml holds " + join(names)
  );
}

std::string required(const Invocation& invocation, const char* option, const char* what) {
  if (!invocation.has(option)) {
    throw Error(std::string("launch needs ") + option + ", " + what, "see megahost launch --help");
  }
  return invocation.value(option);
}

/// "p4d.24xlarge,p4de.24xlarge", without HyperPod's "ml.".
std::vector<std::string> instances_of(const std::string& text) {
  std::vector<std::string> names;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    std::string name = text.substr(at, end - at);
    names.push_back(name.starts_with(kHyperPod) ? name.substr(kHyperPod.size()) : name);
    at = end + 1;
  }
  return names;
}

std::vector<std::string> words_of_text(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; stream >> word;) {
    words.push_back(word);
  }
  return words;
}

LaunchOptions options_of(const Invocation& invocation) {
  const auto count = [&](const char* option, int64_t least) -> std::optional<int64_t> {
    constexpr int64_t kMost = 1 << 20;
    return invocation.has(option)
               ? std::optional(number_option(invocation, option, 0, least, kMost))
               : std::nullopt;
  };
  constexpr double kMostHours = 24 * 365;
  return {
      .target = required(invocation, "--target", "where the job is submitted: slurm, job, ..."),
      .api = invocation.value("--api"),
      .nodes = number_option(invocation, "--nodes", 1, 1, kMostNodes),
      .instances = instances_of(
          required(invocation, "--instance", "the type of its nodes, such as p5.48xlarge")
      ),
      .hyperpod = invocation.value("--instance").starts_with(kHyperPod),
      .name = invocation.value("--name"),
      .image = invocation.value("--image"),
      .name_space = invocation.value("--namespace"),
      .gpus = count("--gpus-per-node", 1),
      .efa = count("--efa", 0),
      .huge_pages = !invocation.has("--no-huge-pages"),
      .preflight = invocation.has("--preflight"),
      .shared_memory = count("--shared-memory", 1).value_or(0),
      .volumes = invocation.all("--volume"),
      .environment = invocation.all("--env"),
      .ports = invocation.all("--port"),
      .zones = invocation.all("--zone"),
      .libfabric = invocation.value("--libfabric"),
      .ofi_nccl = invocation.value("--ofi-nccl"),
      .hours = real_option(invocation, "--hours", 0, 0, kMostHours),
      .restarts = count("--restarts", 0).value_or(3),
      .priority = invocation.value("--priority"),
      .gang = invocation.value("--gang"),
      .queue = invocation.value("--queue"),
      .copy_to = invocation.value("--copy-to"),
      .sbatch = invocation.all("--sbatch"),
      .tensorboard = invocation.value("--tensorboard"),
      .fetch = invocation.all("--fetch"),
      .fetch_to = invocation.value("--fetch-to"),
      .prepare = invocation.all("--prepare"),
      .prepare_to = invocation.value("--prepare-to"),
      .prepare_options = words_of_text(invocation.value("--prepare-options"))};
}

/// The recipe's own plan for the instances' machine.
Planned
plan_of(const Invocation& invocation, Host& host, const LaunchOptions& options, int64_t ranks) {
  Invocation asked = invocation;
  const std::string world = std::to_string(options.nodes * ranks);
  asked.options["--on"] = {options.instances.front()};
  asked.options["--gpus"] = {world};
  return planned_run(
      asked,
      host,
      {"the number of ranks, " + world + " on " + std::to_string(options.nodes) +
           (options.nodes == 1 ? " node," : " nodes,"),
       "nodes that have as many ranks together as the layout:"}
  );
}

/// Tokens of the whole run, as the recipe or --tokens says.
double tokens_of(const Invocation& invocation, const Planned& planned) {
  return invocation.has("--tokens")
             ? token_count(invocation.value("--tokens"))
             : planned.plan.tokens * static_cast<double>(planned.recipe.iterations());
}

/// "cost: ...": what the nodes take until the run is over.
std::string
cost_text(const Invocation& invocation, const Planned& planned, int64_t nodes, double tokens) {
  const double hours =
      tokens / planned.plan.tokens_per_second() / 3600 * static_cast<double>(nodes);
  std::string text = "cost: " + formatted(hours >= 10 ? "%.0f" : "%.2g", hours) + " node-hours";
  if (invocation.has("--price")) {
    const double price = real_option(invocation, "--price", 0, 0, 1e6);
    text += ", " + grouped(std::llround(hours * price)) + " USD at " + formatted("%.2f", price) +
            " a node and hour";
  }
  return text + "\n";
}

/// Warns of files that would be lost with a pod: only volumes outlive it.
void warn_of_lost_files(const Job& job, const Recipe& recipe) {
  const auto kept = [&](const std::string& folder) {
    return std::any_of(job.volumes.begin(), job.volumes.end(), [&](const Volume& volume) {
      return folder == volume.path || folder.starts_with(volume.path + "/");
    });
  };
  if (!job.image.empty() && find_target(job.target).kubernetes && !kept(recipe.checkpoint.dir) &&
      !scheme_of(recipe.checkpoint.dir)) {
    warn(
        "checkpoint.dir " + recipe.checkpoint.dir +
        " lies on no volume of the job: what is saved ends with the pod (--volume KIND:NAME:PATH "
        "and --set checkpoint.dir=PATH/...)"
    );
  }
}

/// The recipe that ranks run. Plans put a machine's kernels in the place of its device, and programs
/// have none: theirs is the recipe's own.
Recipe recipe_of_ranks(
    const Invocation& invocation,
    Host& host,
    const LaunchOptions& options,
    const NodeType& node,
    const Recipe& planned
) {
  if (node.device.empty()) {
    return planned;
  }
  Recipe own = read_resolved(invocation, host, invocation.arguments.front()).resolved.recipe;
  if (own.device.use != node.device) {
    throw Error(
        options.instances.front() + " has " + node.resource + ", and device \"" + own.device.use +
            "\" does not train on it",
        "set device.use to \"" + node.device + "\""
    );
  }
  return own;
}

/// Compares with what lies in the folder. Returns whether something differs.
bool print_differences(const std::filesystem::path& folder, const std::vector<JobFile>& files) {
  bool differ = false;
  for (const JobFile& file : files) {
    const auto path = folder / file.name;
    const std::string before =
        std::filesystem::is_regular_file(path) ? read_file(path, kLargestFile) : "";
    const std::string text = text_diff(before, file.text, path.string());
    std::fputs(text.c_str(), stdout);
    differ = differ || !text.empty();
  }
  return differ;
}

} // namespace

int command_launch(const Invocation& typed, Host& host) {
  const Invocation invocation = with_preset(typed);
  const LaunchOptions options = options_of(invocation);
  const std::string folder = required(invocation, "-o", "the folder that gets its files");
  std::vector<NodeType> nodes;
  for (const std::string& instance : options.instances) {
    nodes.push_back(find_machine(instance, tables()).hardware.node);
  }
  // A count of ranks that no cluster has is refused before anything is planned.
  RunFacts run;
  const int64_t ranks = make_job(options, nodes, run).ranks;
  const Planned planned = plan_of(invocation, host, options, ranks);
  const Recipe recipe = recipe_of_ranks(invocation, host, options, nodes.front(), planned.recipe);
  const double tokens = tokens_of(invocation, planned);
  PlanReport report{recipe, planned.plan, tokens, planned.changes};
  report.settings = settings_text(recipe, planned.plan.shape, host);
  const bool diff = invocation.has("--diff");
  if (!diff) {
    std::fputs(plan_text(report, Terminal::of(STDOUT_FILENO)).c_str(), stdout);
    std::fputs(cost_text(invocation, planned, options.nodes, tokens).c_str(), stdout);
  }
  if (!planned.plan.fits()) {
    throw Error(
        "the layout does not fit into the memory of " + options.instances.front() +
            ", and nothing was written",
        "`megahost plan --search` finds layouts that do",
        exit_code::memory
    );
  }
  run = {
      .name = recipe.name,
      .recipe = show_recipe(recipe, RecipeFormat::toml, /*origins=*/false),
      .on_gpu = !nodes.front().device.empty() ||
                !host.require(Kind::device, recipe.device.use).planned.in_host_memory(),
      .rounds = recipe.precision == "bf16" && !recipe.optimizer.master_weights,
      .run_folder = recipe.run_folder()};
  const Job job = make_job(options, nodes, run);
  const std::vector<JobFile> files = write_job(job, folder);
  if (diff) {
    return print_differences(folder, files) ? 1 : 0;
  }
  warn_of_lost_files(job, recipe);
  make_directories(folder);
  std::printf("\n");
  for (const JobFile& file : files) {
    const auto path = std::filesystem::path(folder) / file.name;
    replace_file(path, file.text);
    std::printf("%s\n", path.c_str());
  }
  std::fflush(stdout);
  return invocation.has("--submit") ? submit(invocation, job, files, folder) : 0;
}

} // namespace mh
