#include "core/train/closing.hpp"

#include "core/recipe/text.hpp"
#include "core/train/sample.hpp"
#include "core/train/words.hpp"

#include <sys/resource.h>

#include <sstream>

namespace mh {
namespace {

void lines_of(RunLog& log, const std::string& text, const std::string& indent) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    log.line(indent + line);
  }
}

int64_t peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * int64_t{1024};
}

} // namespace

void close_run(
    const Session& session,
    RunLog& log,
    Output& output,
    const std::string& command,
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
  const std::string recipe = command.empty() ? (folder / "recipe.toml").string() : command;
  log.line("");
  log.line(
      "peak memory " + bytes_text(peak_memory()) + "; run folder " + folder.string() +
      " (recipe.toml, metrics.jsonl, log.txt, checkpoints)"
  );
  log.line("next:");
  if (finished) {
    log.line(words(
        "  megahost run %s --resume --set train.iters=%lld   train on",
        recipe.c_str(),
        static_cast<long long>(2 * session.recipe.iterations())
    ));
  } else {
    log.line("  megahost run " + recipe + " --resume   go on");
  }
  log.line("  megahost eval " + recipe + " --weights " + folder.string() + "   measure it");
}

} // namespace mh
