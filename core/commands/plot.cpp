#include "core/base/text.hpp"
#include "core/commands/commands.hpp"
#include "core/runs/run_panels.hpp"
#include "core/storage/file_system.hpp"
#include "megahost/error.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>

namespace mh {

namespace {

std::vector<Measure>
chosen_measures(const std::vector<RunMetrics>& runs, std::vector<std::string> names) {
  const auto all = measures(runs);
  if (names.empty()) {
    names = {"loss", "lr", "gradient_norm", "tokens_per_second"};
  }
  std::vector<Measure> chosen;
  for (const auto& name : names) {
    const auto found = std::find_if(all.begin(), all.end(), [&](const Measure& measure) {
      return measure.name == name;
    });
    if (found == all.end()) {
      std::vector<std::string> known;
      for (const auto& measure : all) {
        known.push_back(measure.name);
      }
      const auto meant = nearest(name, known);
      throw Error(
          "the runs have no metric " + name,
          (meant ? "did you mean " + *meant + "? " : "") + "they have " + join(known)
      );
    }
    chosen.push_back(*found);
  }
  return chosen;
}

int64_t smooth_window(const Invocation& invocation) {
  const std::string text = invocation.value("--smooth", "1");
  int64_t window = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), window);
  if (error != std::errc() || end != text.data() + text.size() || window < 1) {
    throw Error("--smooth " + text + " is no number of steps", "give 1 or more, such as 20");
  }
  return window;
}

void print(const std::vector<Panel>& panels, const Terminal& terminal) {
  const int width = std::clamp(terminal.width, 60, 120);
  for (size_t i = 0; i < panels.size(); ++i) {
    Chart chart = panels[i].chart;
    chart.width = width;
    chart.height = panels.size() > 1 ? 8 : 16;
    const std::string text = line_chart(chart, panels[i].series, terminal);
    std::fputs(((i > 0 ? "\n" : "") + text).c_str(), stdout);
  }
}

} // namespace

int command_plot(const Invocation& invocation, Host&) {
  std::vector<RunMetrics> runs;
  for (const std::string& folder : invocation.arguments) {
    runs.push_back(read_run(folder));
  }
  const Terminal terminal = Terminal::of(STDOUT_FILENO);
  const int64_t window = smooth_window(invocation);
  std::vector<Panel> panels;
  for (const auto& measure : chosen_measures(runs, invocation.all("--metric"))) {
    panels.push_back(panel_of(measure, runs, window, /*letters=*/!terminal.colour));
  }
  if (!invocation.has("--svg")) {
    print(panels, terminal);
    return 0;
  }
  std::vector<std::string> names;
  for (const auto& run : runs) {
    names.push_back(run.name);
  }
  const std::string file = invocation.value("--svg");
  replace_file(file, svg_charts(join(names), panels));
  std::printf("%s holds %zu charts of %s\n", file.c_str(), panels.size(), join(names).c_str());
  return 0;
}

} // namespace mh
