#include "core/base/number_text.hpp"
#include "core/bench/bench.hpp"
#include "core/draw/terminal.hpp"
#include "core/kernels/level.hpp"
#include "core/kernels/processor.hpp"

#include <ATen/Parallel.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>

namespace mh {

RunTimes run_times(const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::duration time) {
    return std::chrono::duration<double>(time).count();
  };
  work();
  std::vector<double> times;
  const auto start = Clock::now();
  while (times.size() < 3 || seconds(Clock::now() - start) < 0.35) {
    const auto before = Clock::now();
    work();
    times.push_back(seconds(Clock::now() - before));
  }
  std::sort(times.begin(), times.end());
  return {.shortest = times.front(), .median = times[times.size() / 2]};
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
  std::string text = formatted(
      "%s, %d threads, kernels %s\n",
      this_processor().name.c_str(),
      at::get_num_threads(),
      std::string(kernels::level().name).c_str()
  );
  text += table.title + "\n\n";
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
      {"rows", table.rows}};
  return json.dump(2) + "\n";
}

} // namespace mh
