#include "core/base/number_text.hpp"
#include "core/base/text.hpp"
#include "core/commands/commands.hpp"
#include "core/runs/comparison.hpp"
#include "core/runs/run_view.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>

namespace mh {

namespace {

using Json = nlohmann::ordered_json;

Json to_json(const std::vector<ComparedRow>& rows, const char* at) {
  Json list = Json::array();
  for (const auto& row : rows) {
    list.push_back(
        {{at, row.at},
         {"left", row.left},
         {"right", row.right},
         {"difference", row.right - row.left}}
    );
  }
  return list;
}

Json to_json(const Comparison& all) {
  Json recipe = Json::array();
  for (const auto& [key, left, right] : all.recipe) {
    const auto text = [](const std::optional<Value>& value) {
      return value ? Json(to_text(*value)) : Json();
    };
    recipe.push_back({{"key", key}, {"left", text(left)}, {"right", text(right)}});
  }
  Json runs = Json::array();
  for (size_t i = 0; i < 2; ++i) {
    runs.push_back(
        {{"run", all.names[i]},
         {"steps", all.totals[i].steps},
         {"tokens_per_second", all.totals[i].tokens_per_second},
         {"seconds", all.totals[i].median_seconds},
         {"memory", all.totals[i].memory},
         {"goodput", goodput_json(all.totals[i].goodput)}}
    );
  }
  return {
      {"runs", runs},
      {"recipe", recipe},
      {"loss_by_step", to_json(all.by_step, "step")},
      {"loss_by_tokens", to_json(all.by_tokens, "tokens")},
      {"validation", to_json(all.validation, "step")},
      {"first_difference", all.differs_at > 0 ? Json(all.differs_at) : Json()}};
}

void print_rows(
    const char* title, const char* at, const Comparison& all, const std::vector<ComparedRow>& rows
) {
  if (rows.empty()) {
    return;
  }
  const size_t left = std::max<size_t>(10, all.names[0].size() + 2);
  const size_t right = std::max<size_t>(10, all.names[1].size() + 2);
  std::printf(
      "\n%s\n  %s%s%sdifference\n",
      title,
      padded(at, 16).c_str(),
      padded(all.names[0], left).c_str(),
      padded(all.names[1], right).c_str()
  );
  for (const auto& row : rows) {
    std::printf(
        "  %s%s%s%+.4f\n",
        padded(grouped(row.at), 16).c_str(),
        padded(formatted("%.4f", row.left), left).c_str(),
        padded(formatted("%.4f", row.right), right).c_str(),
        row.right - row.left
    );
  }
}

void print_recipe(const Comparison& all) {
  std::printf("recipe%s\n", all.recipe.empty() ? ": no difference" : "");
  size_t width = 0;
  for (const auto& difference : all.recipe) {
    width = std::max(width, difference.key.size() + 2);
  }
  for (const auto& [key, left, right] : all.recipe) {
    const auto text = [](const std::optional<Value>& value) {
      return value ? to_text(*value) : std::string("-");
    };
    std::printf(
        "  %s%s -> %s\n", padded(key, width).c_str(), text(left).c_str(), text(right).c_str()
    );
  }
}

std::string ratio(double left, double right) {
  return left > 0 ? formatted("%+.1f%%", 100 * (right / left - 1)) : "n/a";
}

void print_totals(const Comparison& all) {
  const auto& [a, b] = std::pair(all.totals[0], all.totals[1]);
  std::printf(
      "\nspeed and memory (medians of the steps; peak)\n"
      "  tokens/s        %s -> %s   %s\n"
      "  ms per step     %.1f -> %.1f   %s\n"
      "  memory          %s -> %s   %s\n",
      grouped(static_cast<int64_t>(a.tokens_per_second)).c_str(),
      grouped(static_cast<int64_t>(b.tokens_per_second)).c_str(),
      ratio(a.tokens_per_second, b.tokens_per_second).c_str(),
      1e3 * a.median_seconds,
      1e3 * b.median_seconds,
      ratio(a.median_seconds, b.median_seconds).c_str(),
      bytes_text(a.memory).c_str(),
      bytes_text(b.memory).c_str(),
      ratio(static_cast<double>(a.memory), static_cast<double>(b.memory)).c_str()
  );
  const char* title = "\ngoodput\n";
  for (size_t i = 0; i < 2; ++i) {
    if (const auto& goodput = all.totals[i].goodput) {
      std::printf(
          "%s  %s%s\n", title, padded(all.names[i], 16).c_str(), goodput_text(*goodput).c_str()
      );
      title = "";
    }
  }
}

void print(const Comparison& all) {
  print_recipe(all);
  if (all.differs_at == 0) {
    std::printf("\nloss and gradient norm are equal in every bit of all common steps\n");
  } else if (all.differs_at > all.first_common) {
    std::printf(
        "\nloss and gradient norm are equal in every bit before step %lld\n",
        static_cast<long long>(all.differs_at)
    );
  }
  print_rows("loss at equal steps (mean since the row above)", "step", all, all.by_step);
  print_rows("loss at equal tokens (mean since the row above)", "tokens", all, all.by_tokens);
  print_rows("validation loss", "step", all, all.validation);
  print_totals(all);
}

} // namespace

int command_compare(const Invocation& invocation, Host&) {
  const Comparison all(read_run(invocation.arguments[0]), read_run(invocation.arguments[1]));
  if (invocation.has("--json")) {
    std::printf("%s\n", to_json(all).dump(2).c_str());
  } else {
    print(all);
  }
  return 0;
}

} // namespace mh
