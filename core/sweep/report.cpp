// A sweep's table, CSV, JSON and page.

#include "core/base/number_text.hpp"
#include "core/base/text.hpp"
#include "core/draw/columns.hpp"
#include "core/draw/page.hpp"
#include "core/draw/svg.hpp"
#include "core/language/json_value.hpp"
#include "core/runs/run_panels.hpp"
#include "core/sweep/sweep.hpp"
#include "megahost/error.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace mh {

namespace {

using Json = nlohmann::ordered_json;

std::string plain(const Value& value) {
  return value.is_string() ? value.as_string() : to_text(value);
}

/// Keys that the points set, and then the names of their notes, each once.
std::vector<std::string> keys_of(const std::vector<PointRun>& points, bool notes) {
  std::vector<std::string> keys;
  const auto add = [&](const std::string& key) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      keys.push_back(key);
    }
  };
  for (const PointRun& run : points) {
    for (const auto& [key, value] : run.point.values) {
      if (!notes) {
        add(key);
      }
    }
    for (const auto& note : run.point.notes) {
      if (notes) {
        add(note.key);
      }
    }
  }
  return keys;
}

const Value* value_of(const PointRun& run, const std::string& key, bool note) {
  if (note) {
    return run.point.notes.find(key);
  }
  const auto& values = run.point.values;
  const auto found = std::find_if(values.begin(), values.end(), [&](const auto& pair) {
    return pair.first == key;
  });
  return found == values.end() ? nullptr : &found->second;
}

std::string number(const char* format, double value) {
  return std::isfinite(value) ? svg::format(format, value) : "-";
}

/// Points that run or have failed first, then the others in the order of the sweep.
std::vector<const PointRun*> in_order_of_interest(const std::vector<PointRun>& points) {
  std::vector<const PointRun*> order;
  for (const PointRun& run : points) {
    order.push_back(&run);
  }
  std::stable_partition(order.begin(), order.end(), [](const PointRun* run) {
    return run->state == PointState::running || run->state == PointState::failed;
  });
  return order;
}

std::string csv_cell(std::string text) {
  if (text.find_first_of(",\"\n") == std::string::npos) {
    return text;
  }
  for (size_t at = 0; (at = text.find('"', at)) != std::string::npos; at += 2) {
    text.insert(at, 1, '"');
  }
  return "\"" + text + "\"";
}

/// Whether values of a key are compared by their ratios: a learning rate's, and those that span
/// decades.
bool by_ratio(const std::string& key, double low, double high) {
  constexpr double kDecades = 100;
  const std::string name = key.substr(key.rfind('.') + 1);
  const bool rate = name == "lr" || name.starts_with("lr_") || name.ends_with("_lr");
  return low > 0 && (rate || high >= kDecades * low);
}

/// The last loss of finished runs over a key, where it has at least two numbers.
std::optional<Panel> loss_over(const std::string& key, const std::vector<PointRun>& points) {
  Panel panel{.chart = {.title = "last loss over " + key, .x_label = key}, .series = {}};
  double low = INFINITY, high = -INFINITY;
  for (size_t i = 0; i < points.size(); ++i) {
    const Value* value = value_of(points[i], key, /*note=*/false);
    if (value == nullptr || !value->is_number() || !std::isfinite(points[i].loss)) {
      continue;
    }
    low = std::min(low, value->as_number());
    high = std::max(high, value->as_number());
    panel.series.push_back(
        {.name = points[i].point.label(),
         .x = {value->as_number()},
         .y = {points[i].loss},
         .marks = true,
         .paint = run_paint(i)}
    );
  }
  panel.chart.log_x = by_ratio(key, low, high);
  return low < high ? std::optional(std::move(panel)) : std::nullopt;
}

std::vector<Panel> panels_of(const std::vector<PointRun>& points, const SweepOptions& options) {
  std::vector<RunMetrics> runs;
  for (const PointRun& run : points) {
    try {
      runs.push_back(read_run(PointFiles(options.folder, run.id).run.string()));
      runs.back().name = run.point.label();
    } catch (const Error&) {
      runs.push_back({.name = run.point.label(), .folder = {}, .steps = {}, .evaluations = {}});
    }
  }
  std::vector<Panel> panels;
  for (const Measure& measure : measures(runs)) {
    if (measure.name == "loss" || measure.name == "lr" || measure.name == "gradient_norm" ||
        measure.name == "tokens_per_second") {
      panels.push_back(panel_of(measure, runs, /*window=*/1, /*letters=*/false));
      panels.back().chart.log_y = measure.name == "lr"; // runs compare by ratios
    }
  }
  for (const std::string& key : keys_of(points, /*notes=*/false)) {
    if (auto panel = loss_over(key, points)) {
      panels.push_back(std::move(*panel));
    }
  }
  return panels;
}

/// Every column of a point, as text.
std::vector<TextRow> all_cells(const std::vector<PointRun>& points, const SweepOptions& options) {
  const auto keys = keys_of(points, /*notes=*/false), notes = keys_of(points, /*notes=*/true);
  TextRow head{"id", "state"};
  head.insert(head.end(), keys.begin(), keys.end());
  head.insert(head.end(), notes.begin(), notes.end());
  for (const char* word :
       {"steps",
        "loss",
        "validation_loss",
        "tokens_per_second",
        "seconds",
        "reason",
        "run_folder"}) {
    head.emplace_back(word);
  }
  std::vector<TextRow> rows{head};
  for (const PointRun& run : points) {
    TextRow row{run.id, state_name(run.state)};
    for (const auto& [names, note] : {std::pair(&keys, false), std::pair(&notes, true)}) {
      for (const std::string& key : *names) {
        const Value* value = value_of(run, key, note);
        row.push_back(value != nullptr ? plain(*value) : "");
      }
    }
    const auto cell = [](double value) {
      return std::isfinite(value) ? svg::format("%.6g", value) : std::string();
    };
    row.insert(
        row.end(),
        {std::to_string(run.step),
         cell(run.loss),
         cell(run.validation),
         cell(run.tokens_per_second),
         cell(run.seconds),
         run.reason,
         PointFiles(options.folder, run.id).run.string()}
    );
    rows.push_back(std::move(row));
  }
  return rows;
}

} // namespace

std::string
points_table(const std::vector<PointRun>& points, const Terminal& terminal, size_t most) {
  std::vector<TextRow> rows{
      {"ID", "POINT", "STATE", "STEP", "LOSS", "VALIDATION", "TOKENS/S", "REASON"}};
  for (const PointRun* run : in_order_of_interest(points)) {
    if (rows.size() > most) {
      break;
    }
    rows.push_back(
        {run->id,
         run->point.label(),
         state_name(run->state),
         std::to_string(run->step) + "/" + std::to_string(run->steps),
         number("%.4f", run->loss),
         number("%.4f", run->validation),
         number("%.0f", run->tokens_per_second),
         run->reason}
    );
  }
  std::string text = columns(rows, terminal, {Paint::dim, Paint::cyan});
  if (points.size() > most) {
    text += "(" + std::to_string(points.size() - most) + " more)\n";
  }
  return text;
}

std::string points_csv(const std::vector<PointRun>& points, const SweepOptions& options) {
  std::string text;
  for (const TextRow& row : all_cells(points, options)) {
    std::vector<std::string> cells;
    for (const std::string& cell : row) {
      cells.push_back(csv_cell(cell));
    }
    text += join(cells, ",") + "\n";
  }
  return text;
}

std::string points_json(const std::vector<PointRun>& points, const SweepOptions& options) {
  Json all = Json::array();
  for (const PointRun& run : points) {
    const auto finite = [](double value) { return std::isfinite(value) ? Json(value) : Json(); };
    Json object{{"id", run.id}, {"state", state_name(run.state)}, {"values", Json::object()}};
    for (const auto& [key, value] : run.point.values) {
      object["values"][key] = json_value(value);
    }
    for (const auto& note : run.point.notes) {
      object[note.key] = json_value(note.value);
    }
    object.update(
        {{"steps", run.step},
         {"loss", finite(run.loss)},
         {"validation_loss", finite(run.validation)},
         {"tokens_per_second", finite(run.tokens_per_second)},
         {"seconds", run.seconds},
         {"reason", run.reason},
         {"recipe", PointFiles(options.folder, run.id).recipe.string()},
         {"run_folder", PointFiles(options.folder, run.id).run.string()}}
    );
    all.push_back(std::move(object));
  }
  return all.dump(2) + "\n";
}

std::string points_page(
    const std::string& title, const std::vector<PointRun>& points, const SweepOptions& options
) {
  std::string body = svg_charts(title, panels_of(points, options)) + "<table>\n";
  const std::vector<TextRow> rows = all_cells(points, options);
  for (const TextRow& cells : rows) {
    const bool head = &cells == &rows.front();
    body += html::row(cells, head ? "th" : "td", cells[1] == "failed" ? "failed" : "");
  }
  return html::page(title, body + "</table>\n");
}

} // namespace mh
