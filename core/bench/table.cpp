#include "core/base/number_text.hpp"
#include "core/base/seconds.hpp"
#include "core/bench/bench.hpp"
#include "core/draw/terminal.hpp"
#include "core/kernels/level.hpp"
#include "core/kernels/processor.hpp"

#include <ATen/Parallel.h>

#include <nlohmann/json.hpp>

#include <algorithm>

namespace mh {

RunTimes run_times(const std::function<void()>& work, const Device* device, double seconds) {
  constexpr double kTogether = 5e-3; // seconds, in which a launch and a wait count little
  constexpr int64_t kMostTogether = 1024;
  const bool waits = device != nullptr && !device->device().is_cpu();
  const auto run = [&](int64_t times) {
    const auto before = Clock::now();
    for (int64_t i = 0; i < times; ++i) {
      work();
    }
    if (waits) {
      device->synchronize();
    }
    return seconds_since(before);
  };
  run(1);
  int64_t together = 1;
  while (waits && together < kMostTogether && run(together) < kTogether) {
    together *= 2;
  }
  std::vector<double> times;
  const auto start = Clock::now();
  while (times.size() < 3 || seconds_since(start) < seconds) {
    times.push_back(run(together) / static_cast<double>(together));
  }
  std::sort(times.begin(), times.end());
  return {.shortest = times.front(), .median = times[times.size() / 2]};
}

std::string host_summary() {
  return formatted(
      "%s, %d threads, kernels %s",
      this_processor().name.c_str(),
      at::get_num_threads(),
      std::string(kernels::level().name).c_str()
  );
}

namespace {

std::string cell_text(const nlohmann::ordered_json& cell, int decimals) {
  if (cell.is_string()) {
    return cell.get<std::string>();
  }
  return cell.is_number() ? formatted("%.*f", decimals, cell.get<double>()) : "-";
}

std::string padded(const std::string& text, size_t width, bool left) {
  const std::string space(width - static_cast<size_t>(cells(text)), ' ');
  return left ? text + space : space + text;
}

} // namespace

std::string table_text(const BenchTable& table) {
  std::string text = table.machine + "\n" + table.title + "\n\n";
  std::vector<std::vector<std::string>> lines(table.rows.size() + 1);
  for (const auto& column : table.columns) {
    std::vector<std::string> words{column.heading};
    for (const auto& row : table.rows) {
      words.push_back(cell_text(row.value(column.key, nlohmann::ordered_json()), column.decimals));
    }
    const bool left = !table.rows.empty() && table.rows[0].contains(column.key) &&
                      table.rows[0][column.key].is_string();
    int width = 0;
    for (const auto& word : words) {
      width = std::max(width, cells(word));
    }
    for (size_t i = 0; i < lines.size(); ++i) {
      lines[i].push_back(padded(words[i], static_cast<size_t>(width), left));
    }
  }
  for (const auto& line : lines) {
    std::string joined;
    for (const auto& word : line) {
      joined += "  " + word;
    }
    text += joined.erase(joined.find_last_not_of(' ') + 1) + "\n";
  }
  return text + (table.note.empty() ? "" : "\n" + table.note + "\n");
}

std::string table_json(const BenchTable& table) {
  nlohmann::ordered_json json{
      {"processor", this_processor().name},
      {"threads", at::get_num_threads()},
      {"kernels", kernels::level().name},
      {"machine", table.machine},
      {"rows", table.rows}};
  return json.dump(2) + "\n";
}

} // namespace mh
