#include "core/train/closing.hpp"

#include "core/recipe/text.hpp"
#include "core/train/sample.hpp"
#include "core/train/words.hpp"

#include <algorithm>
#include <sstream>

namespace mh {
namespace {

void lines_of(RunLog& log, const std::string& text, const std::string& indent) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    log.line(indent + line);
  }
}

} // namespace

std::string command_line(
    const TrainOptions& options,
    const Recipe& recipe,
    const std::filesystem::path& folder,
    const std::string& command,
    const std::string& anew
) {
  auto given = options.recipe_words;
  if (given.empty()) {
    given = {(folder / "recipe.toml").string()};
  }
  const bool elsewhere = folder != std::filesystem::path(recipe.checkpoint.dir);
  std::string text = shell_word(options.program) + " " + command;
  const auto is_over = [&](const std::string& set) {
    return set.starts_with("train.exit_iters=") || (!anew.empty() && set.starts_with(anew + "=")) ||
           (elsewhere && set.starts_with("checkpoint.dir="));
  };
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i] == "--set" && i + 1 < given.size() && is_over(given[i + 1])) {
      ++i;
    } else {
      text += " " + shell_word(given[i]);
    }
  }
  if (elsewhere) {
    text += " --set " + shell_word("checkpoint.dir=" + folder.string());
  }
  return text;
}

void close_run(
    const Session& session,
    RunLog& log,
    Output& output,
    const TrainOptions& options,
    const std::filesystem::path& folder,
    bool finished
) {
  const bool for_people = session.recipe.log.format != "json";
  if (const auto chart = output.chart(log.curves()); for_people && !chart.empty()) {
    log.line("");
    lines_of(log, chart, "");
  }
  if (finished && session.mesh.world() == 1 && session.architecture->vocab() >= 2) {
    const auto sampled = sample_text(
        session, {.sampling = {.seed = static_cast<uint64_t>(session.recipe.train.seed)}}
    );
    log.line("");
    log.line("what the model writes after \"" + terminal_text(sampled.prompt) + "\":");
    lines_of(log, terminal_text(sampled.text), "  ");
  }
  log.line("");
  log.line(
      "peak memory " + bytes_text(session.device->peak_memory()) + "; run folder " +
      folder.string() + " (recipe.toml, metrics.jsonl, log.txt, " +
      (session.recipe.log.tensorboard ? "tensorboard, " : "") + "checkpoints)"
  );
  log.line("next:");
  const auto line = [&](const std::string& command, const std::string& anew = "") {
    return "  " + command_line(options, session.recipe, folder, command, anew);
  };
  if (finished) {
    const auto iters = std::to_string(2 * session.recipe.iterations());
    log.line(line("run", "train.iters") + " --resume --set train.iters=" + iters + "   # train on");
  }
  log.line(line("eval") + " --weights " + shell_word(folder.string()) + "   # measure it");
}

} // namespace mh
