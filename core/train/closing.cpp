#include "core/train/closing.hpp"

#include "core/base/number_text.hpp"
#include "core/base/text.hpp"
#include "core/checkpoint/run_folder.hpp"
#include "core/plugin/crash.hpp"
#include "core/records/goodput.hpp"
#include "core/records/metrics.hpp"
#include "core/train/closing_text.hpp"

#include <algorithm>
#include <exception>
#include <sstream>

namespace mh {
namespace {

void lines_of(RunLog& log, const std::string& text, const std::string& indent) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    log.line(indent + line);
  }
}

std::vector<StepRecord> step_records(const std::filesystem::path& folder) {
  std::vector<StepRecord> steps;
  each_metric(metrics_file(folder), [&](const Metric& metric, const std::string&) {
    if (const auto* step = std::get_if<StepRecord>(&metric)) {
      steps.push_back(*step);
    }
  });
  return steps;
}

} // namespace

std::string command_line(
    const TrainOptions& options,
    const Recipe& recipe,
    const std::filesystem::path& folder,
    const std::string& command,
    const std::vector<std::string>& anew
) {
  auto given = options.recipe_words;
  if (given.empty()) {
    given = {(folder / "recipe.toml").string()};
  }
  const bool elsewhere = folder != std::filesystem::path(recipe.run_folder());
  std::string text = shell_word(options.program) + " " + command;
  const auto is_over = [&](const std::string& set) {
    const std::string key = set.substr(0, set.find('='));
    return key == "train.exit_iters" || key.starts_with("load.") || // a start loads once
           (elsewhere && (key == "checkpoint.dir" || key == "run_dir")) ||
           std::find(anew.begin(), anew.end(), key) != anew.end();
  };
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i] == "--set" && i + 1 < given.size() && is_over(given[i + 1])) {
      ++i;
    } else {
      text += " " + shell_word(given[i]);
    }
  }
  if (elsewhere) {
    text += recipe.run_dir ? " --set " + shell_word("run_dir=" + folder.string()) : std::string();
    text += " --set " + shell_word("checkpoint.dir=" + checkpoint_folder(recipe, folder).string());
  }
  return text;
}

void close_run(
    const Session& session,
    RunLog& log,
    Output& output,
    const TrainOptions& options,
    const std::filesystem::path& folder,
    const std::function<NextCommand()>& train_on
) {
  const Recipe& recipe = session.recipe;
  const std::string saves = checkpoint_folder(recipe, folder).string();
  const ForShow over("the run is over and kept in " + folder.string());
  const auto show = [&log](const char* what, const auto& action) {
    try {
      action();
    } catch (const std::exception& error) {
      log.line(std::string("warning: ") + what + " is left out: " + error.what());
    }
  };
  show("the curve of the loss", [&] {
    const auto chart = output.chart(log.curves());
    if (recipe.log.format != "json" && !chart.empty()) {
      log.line("");
      lines_of(log, chart, "");
    }
  });
  if (train_on && session.mesh.world() == 1 && session.architecture->vocab() >= 2) {
    show("a sample of what the model writes", [&] {
      const auto text =
          closing_text(session, {.sampling = {.seed = static_cast<uint64_t>(recipe.train.seed)}});
      if (!text) {
        return;
      }
      log.line("");
      log.line(text->title + ":");
      lines_of(log, terminal_text(text->text), "  ");
    });
  }
  log.line("");
  show("the goodput", [&] {
    if (const auto found = goodput(step_records(folder), read_journal(folder))) {
      log.line("goodput " + goodput_text(*found));
    }
  });
  const int64_t peak = session.device->peak_memory(); // 0: the device does not know
  log.line(
      (peak > 0 ? "peak memory " + bytes_text(peak) + "; " : "") + "run folder " + folder.string() +
      " (recipe.toml, metrics.jsonl, log.txt" + (recipe.log.tensorboard ? ", tensorboard" : "") +
      (recipe.run_dir ? "); checkpoints in " + saves : ", checkpoints)")
  );
  const bool resumed = options.resume != Resume::no;
  for (const auto& note :
       folder_notes(recipe.run_folder(), folder, resumed, options.folder_named)) {
    log.line(note);
  }
  show("the command that comes next", [&] {
    const auto line = [&](const std::string& command, const std::vector<std::string>& anew = {}) {
      return "  " + command_line(options, recipe, folder, command, anew);
    };
    log.line("next:");
    if (train_on) {
      const NextCommand next = train_on();
      log.line(line("run", next.anew) + next.options + "   # " + next.comment);
    }
    const bool validates =
        samples_of(*session.corpus, Split::valid) > 0; // eval's own choice of a split
    log.line(
        line("eval") + " --weights " + shell_word(saves) + (validates ? "" : " --split train") +
        "   # measure it"
    );
  });
}

} // namespace mh
