#include "core/train/closing.hpp"

#include "core/recipe/text.hpp"
#include "core/train/sample.hpp"
#include "core/train/words.hpp"

#include <sys/resource.h>

#include <sstream>

namespace mh {
namespace {

// Control characters must not reach a terminal, nor bytes that are no text.
std::string printable_text(const std::string& text) {
  const std::string valid = valid_utf8(text);
  std::string clean;
  for (size_t i = 0; i < valid.size(); ++i) {
    const auto byte = static_cast<unsigned char>(valid[i]);
    const auto next = static_cast<unsigned char>(i + 1 < valid.size() ? valid[i + 1] : 0);
    if (byte == 0xc2 && next < 0xa0) { // U+0080 to U+009F: controls in two bytes
      clean += '?';
      ++i;
    } else if (byte == '\t') {
      clean += ' ';
    } else {
      clean += (byte >= 0x20 && byte != 0x7f) || byte == '\n' ? valid[i] : '?';
    }
  }
  return clean;
}

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
    const auto sampled =
        sample_text(session, {.seed = static_cast<uint64_t>(session.recipe.train.seed)});
    log.line("");
    log.line("what the model writes after \"" + printable_text(sampled.prompt) + "\":");
    lines_of(log, printable_text(sampled.text), "  ");
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
