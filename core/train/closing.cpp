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
    const std::string& command
) {
  auto given = options.recipe_words;
  if (given.empty()) {
    given = {(folder / "recipe.toml").string()};
  }
  const bool elsewhere = folder != std::filesystem::path(recipe.checkpoint.dir);
  std::string text = shell_word(options.program) + " " + command;
  for (size_t i = 0; i < given.size(); ++i) {
    const std::string& value = given[std::min(i + 1, given.size() - 1)];
    if (given[i] == "--set" && (value.starts_with("train.exit_iters=") ||
                                (elsewhere && value.starts_with("checkpoint.dir=")))) {
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
  const auto line = [&](const std::string& command) {
    return "  " + command_line(options, session.recipe, folder, command);
  };
  if (finished) {
    log.line(
        line("run") + words(
                          " --resume --set train.iters=%lld   # train on",
                          static_cast<long long>(2 * session.recipe.iterations())
                      )
    );
  }
  log.line(line("eval") + " --weights " + shell_word(folder.string()) + "   # measure it");
}

} // namespace mh
