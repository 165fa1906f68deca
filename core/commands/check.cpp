// megahost check: a small version of a model under layouts, against one rank.

#include "core/base/number_text.hpp"
#include "core/base/text.hpp"
#include "core/commands/commands.hpp"
#include "core/conformance/layout_trial.hpp"
#include "core/conformance/subject.hpp"
#include "core/draw/terminal.hpp"
#include "core/mesh/spawn.hpp"
#include "core/recipe/layouts.hpp"
#include "core/schema/sections.hpp"
#include "megahost/error.hpp"

#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <sstream>

namespace mh {

namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostChecked = 64;

/// The result of one layout in one number format.
struct Cell {
  TrialDifference difference;
  std::string error;  ///< why the trial did not come to its end
  bool alone = false; ///< whether one rank fails, too

  [[nodiscard]] bool good() const { return error.empty() && difference.within(); }
};

struct LayoutRow {
  Layout layout;
  int64_t ranks = 1;
  std::map<std::string, Cell> cells; ///< by number format

  [[nodiscard]] bool good() const {
    return std::all_of(cells.begin(), cells.end(), [](const auto& cell) {
      return cell.second.good();
    });
  }

  /// Whether it differs from one rank, which has results.
  [[nodiscard]] bool differs() const {
    return std::any_of(cells.begin(), cells.end(), [](const auto& cell) {
      return !cell.second.good() && !cell.second.alone;
    });
  }
};

/// "layers 4, hidden 120, heads 12, ...".
std::string sizes_text(const Recipe& recipe) {
  std::vector<std::string> sizes;
  for (const char* field :
       {"layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab", "seq_length"}) {
    if (const Value* value = recipe.tree.find_path(std::string("model.") + field)) {
      sizes.push_back(std::string(field) + " " + to_text(*value));
    }
  }
  return join(sizes);
}

/// The layouts that were asked for; of `all`, those that are not refused.
std::vector<LayoutRow> rows_of(const Invocation& invocation, const Subject& subject, Host& host) {
  const int64_t ranks = number_option(invocation, "--nproc", 8, 1, kMostChecked);
  const std::string text = invocation.value("--layouts", "all");
  const bool all = text == "all";
  const auto layouts = all ? all_layouts(
                                 shared_schema("parallel", host.known(Kind::strategy)),
                                 host.names(Kind::pipeline_schedule),
                                 ranks
                             )
                           : parse_layouts(text);
  std::vector<LayoutRow> rows;
  std::string refused; // why the first of them was
  for (const Layout& layout : layouts) {
    try {
      const Recipe recipe = subject.under(layout).recipe;
      rows.push_back({layout, recipe.parallel.ranks(), {}});
    } catch (const Error& error) {
      if (!all) {
        if (std::string_view(error.what()).starts_with("model.")) {
          const std::string sizes = sizes_text(subject.under({}).recipe);
          throw Error(
              error.what(),
              "check trains a small model (" + sizes + "); --set model.KEY=N changes its sizes",
              error.exit_code()
          );
        }
        throw;
      }
      if (refused.empty()) {
        refused = layout.text + ": " + error.what();
      }
    }
  }
  if (rows.empty()) {
    throw Error(
        "there is nothing to compare with one rank: " +
            (layouts.empty() ? "--nproc " + std::to_string(ranks) + " allows no layout"
                             : "this model refuses each layout of at most " +
                                   std::to_string(ranks) + " ranks, the first being " + refused),
        "give --nproc 2 or more, or name layouts by --layouts"
    );
  }
  const auto large = std::find_if(rows.begin(), rows.end(), [&](const LayoutRow& row) {
    return row.ranks > ranks;
  });
  if (large != rows.end()) {
    throw Error(
        "the layout " + large->layout.text + " has " + std::to_string(large->ranks) +
            " ranks, --nproc allows " + std::to_string(ranks),
        "give --nproc " + std::to_string(large->ranks)
    );
  }
  std::stable_sort(rows.begin(), rows.end(), [](const LayoutRow& a, const LayoutRow& b) {
    return a.ranks < b.ranks;
  });
  return rows;
}

std::vector<Precision> precisions_of(const Invocation& invocation) {
  if (!invocation.has("--precision")) {
    return {kPrecisions.begin(), kPrecisions.end()};
  }
  std::vector<std::string> known;
  for (const Precision& precision : kPrecisions) {
    known.emplace_back(precision.name);
  }
  std::vector<Precision> wanted;
  std::istringstream list(invocation.value("--precision"));
  for (std::string name; std::getline(list, name, ',');) {
    const auto found = std::find(known.begin(), known.end(), name);
    if (found == known.end()) {
      throw Error("--precision: " + name + " is no number format", "list some of " + join(known));
    }
    wanted.push_back(kPrecisions.at(static_cast<size_t>(found - known.begin())));
  }
  if (wanted.empty()) {
    throw Error("--precision lists no number format", "list some of " + join(known));
  }
  return wanted;
}

class Check {
public:
  Check(const Invocation& invocation, const Subject& subject, const TrialSubject& trial, Host& host)
      : processes_(invocation.has("--processes"))
      , subject_(subject)
      , trial_(trial)
      , host_(host) {}

  [[nodiscard]] Cell cell(const Layout& layout, const Precision& precision) {
    Cell cell;
    try {
      const Recipe recipe = subject_.under(layout).recipe;
      const TrialResult result =
          processes_ ? trial_on_processes(subject_, layout, precision, recipe.parallel.ranks())
                     : trial_on_threads(recipe, host_, trial_.options(precision));
      const TrialResult& rounding = one_rank(layout, kPrecisions.at(precision.other));
      cell.difference =
          compare_trials(one_rank(layout, precision), result, precision.bound, &rounding);
    } catch (const Error& error) {
      cell.alone = fails_on_one_rank(layout, precision);
      cell.error = (cell.alone ? "on one rank, too: " : "") + std::string(error.what());
    }
    return cell;
  }

private:
  /// Trials of what is the same on one rank are run once.
  const TrialResult& one_rank(const Layout& layout, const Precision& precision) {
    const Recipe recipe = subject_.one_rank(layout).recipe;
    auto& result = known_[to_text(recipe.tree) + " " + precision.name];
    if (result == nullptr) {
      result =
          std::make_unique<TrialResult>(trial_on_threads(recipe, host_, trial_.options(precision)));
    }
    return *result;
  }

  [[nodiscard]] bool fails_on_one_rank(const Layout& layout, const Precision& precision) {
    try {
      static_cast<void>(one_rank(layout, precision));
      return false;
    } catch (const Error&) {
      return true;
    }
  }

  bool processes_;
  const Subject& subject_;
  const TrialSubject& trial_;
  Host& host_;
  std::map<std::string, std::unique_ptr<TrialResult>> known_;
};

std::string number(double value) {
  return std::isfinite(value) ? formatted("%.1e", value) : "infinite";
}

/// The cell that lies closest to, or furthest beyond, what is allowed, with its number format.
const std::pair<const std::string, Cell>& worst(const LayoutRow& row) {
  return *std::max_element(row.cells.begin(), row.cells.end(), [](const auto& a, const auto& b) {
    const auto beyond = [](const Cell& cell) {
      return cell.error.empty() ? cell.difference.worst / cell.difference.allowed : 1e300;
    };
    return beyond(a.second) < beyond(b.second);
  });
}

void print(const LayoutRow& row, size_t width, const Terminal& terminal) {
  std::string line = "  " + padded(row.layout.text, width) + padded(std::to_string(row.ranks), 7);
  for (const auto& [precision, cell] : row.cells) {
    line += padded(cell.error.empty() ? number(cell.difference.worst) : "failed", 10);
  }
  const auto& [format, cell] = worst(row);
  const std::string where = (row.good() || row.cells.size() == 1 ? "" : format + ": ") +
                            (cell.error.empty() ? cell.difference.where : cell.error);
  const Paint paint = row.good() ? Paint::green : Paint::red;
  const char* verdict = row.good() ? "same   " : row.differs() ? "DIFFERS" : "FAILED ";
  std::printf("%s%s  %s\n", line.c_str(), terminal.paint(paint, verdict).c_str(), where.c_str());
  std::fflush(stdout);
}

Json to_json(const LayoutRow& row) {
  Json json{{"layout", row.layout.text}, {"ranks", row.ranks}, {"same", row.good()}};
  for (const auto& [precision, cell] : row.cells) {
    json["precisions"][precision] =
        cell.error.empty()
            ? Json{
                  {"worst", std::isfinite(cell.difference.worst) ? Json(cell.difference.worst) : Json()},
                  {"allowed", cell.difference.allowed},
                  {"where", cell.difference.where},
                  {"same", cell.good()}}
            : Json{{"error", cell.error}, {"same", false}};
  }
  return json;
}

void print_head(
    const Recipe& recipe,
    const TrialSubject& trial,
    const std::vector<LayoutRow>& rows,
    size_t width,
    const std::vector<Precision>& precisions
) {
  std::printf(
      "%s, %s; %zu layout%s against one rank: loss, gradients, gradient norm, values "
      "after %lld steps\n  %s\n",
      recipe.model.use.c_str(),
      sizes_text(recipe).c_str(),
      rows.size(),
      rows.size() == 1 ? "" : "s",
      static_cast<long long>(TrialOptions().steps),
      trial.description.c_str()
  );
  std::map<std::string, bool> names; // in the order of the cells
  for (const auto& precision : precisions) {
    names[precision.name] = true;
  }
  std::string line = "  " + padded("layout", width) + padded("ranks", 7);
  for (const auto& [name, unused] : names) {
    line += padded(name, 10);
  }
  std::printf("%s%s  worst at\n", line.c_str(), "       ");
}

} // namespace

int command_check(const Invocation& invocation, Host& host) {
  const Subject subject(invocation, host);
  if (is_spawned_rank()) {
    return run_rank(subject, host);
  }
  const auto precisions = precisions_of(invocation);
  static_cast<void>(subject.under({})); // opens its plugins, before others that are found
  auto rows = rows_of(invocation, subject, host);
  size_t width = 8;
  for (const LayoutRow& row : rows) {
    width = std::max(width, row.layout.text.size() + 2);
  }
  const bool json = invocation.has("--json");
  const TrialSubject trial = trial_subject(subject, host);
  if (!json) {
    print_head(subject.under({}).recipe, trial, rows, width, precisions);
  }
  Check check(invocation, subject, trial, host);
  const Terminal terminal = Terminal::of(STDOUT_FILENO);
  Json all = Json::array();
  bool good = true, differs = false;
  for (LayoutRow& row : rows) {
    for (const Precision& precision : precisions) {
      row.cells[precision.name] = check.cell(row.layout, precision);
    }
    good = good && row.good();
    differs = differs || row.differs();
    if (json) {
      all.push_back(to_json(row));
    } else {
      print(row, width, terminal);
    }
  }
  if (json) {
    std::printf("%s\n", all.dump(2).c_str());
  } else {
    std::printf(
        "%s\n",
        good      ? "every layout matches the single-rank result"
        : differs ? "some layouts differ from the single-rank result"
                  : "some layouts failed"
    );
  }
  return good ? 0 : exit_code::other;
}

} // namespace mh
