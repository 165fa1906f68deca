// Plans of what others have measured and published, row by row: published, predicted, difference.

#include "core/plan/plan.hpp"
#include "core/plugin/catalogue.hpp"
#include "core/recipe/load.hpp"
#include "core/recipe/resolve.hpp"
#include "tests/dist/small_recipe.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace published_tests {

using namespace mh;

namespace {

std::filesystem::path source_folder() {
  return std::getenv("MEGAHOST_SOURCE");
}

ReadOptions roots() {
  ReadOptions options;
  options.roots = {source_folder() / "recipes", source_folder() / "tests/plan"};
  return options;
}

struct Row {
  std::string name, on;
  std::vector<std::string> sets;
  int64_t ranks = 1;
  double published = 0;
  std::vector<std::string> free; // sets that the source does not tell: the fastest that fits

  static void fields(Fields<Row>& f) {
    f.add("name", &Row::name, "");
    f.add("on", &Row::on, "");
    f.add("sets", &Row::sets, "");
    f.add("ranks", &Row::ranks, "");
    f.add("published", &Row::published, "");
    f.add("free", &Row::free, "");
  }
};

struct PublishedTable {
  std::string name, source, unit, on;
  double each = 0, median = 0;
  bool constant = false; // hold the RMS error against the best constant's
  std::vector<std::string> sets;
  std::vector<Row> rows;

  static void fields(Fields<PublishedTable>& f) {
    f.add("source", &PublishedTable::source, "");
    f.add("unit", &PublishedTable::unit, "");
    f.add("on", &PublishedTable::on, "");
    f.add("each", &PublishedTable::each, "");
    f.add("median", &PublishedTable::median, "");
    f.add("constant", &PublishedTable::constant, "");
    f.add("sets", &PublishedTable::sets, "");
    f.add("rows", &PublishedTable::rows, "");
  }
};

PublishedTable published(const std::string& name) {
  const char* file = "published.toml";
  const Value all = read_toml(read_source(source_folder() / "tests/plan" / file, file));
  REQUIRE(all.find(name) != nullptr);
  auto table = mh::detail::struct_fields<PublishedTable>().read(*all.find(name), name);
  table.name = name;
  return table;
}

Recipe recipe_of(const PublishedTable& table, const Row& row, const std::string& free) {
  LoadOptions options;
  options.roots = roots().roots;
  options.facts = {.bf16 = true, .world = row.ranks};
  options.sets = table.sets;
  options.sets.insert(options.sets.end(), row.sets.begin(), row.sets.end());
  std::stringstream more(free);
  for (std::string set; more >> set;) {
    options.sets.push_back(set);
  }
  const Loaded loaded = load_recipe(source_folder() / "tests/plan/published_base.toml", options);
  Host& host = small_host();
  return resolve(loaded, plugin_lookup(host), options.facts).recipe;
}

struct Predicted {
  Row row;
  Plan plan;
  bool fitted = false; // a rate of the machine's was chosen with this row
  double value = 0;
  std::string free = {}; // what was chosen where the source does not tell

  [[nodiscard]] double difference() const { return value / row.published - 1; }
};

/// TFLOP/s per GPU.
double papers_rate(const Recipe& recipe, const Plan& plan) {
  return papers_flops(recipe, plan) / plan.step.total / static_cast<double>(plan.shape.world()) /
         1e12;
}

std::vector<Predicted> predict(
    const PublishedTable& table, const std::function<double(const Recipe&, const Plan&)>& value
) {
  std::vector<Predicted> all;
  for (const auto& row : table.rows) {
    const Machine machine = find_machine(row.on.empty() ? table.on : row.on, roots());
    const auto& fits = machine.calibration.fitted_on;
    const bool fitted =
        std::find(fits.begin(), fits.end(), table.name + ": " + row.name) != fits.end();
    std::optional<Predicted> best;
    for (const auto& free : row.free.empty() ? std::vector<std::string>{""} : row.free) {
      const Recipe recipe = recipe_of(table, row, free);
      const RecordedStep step = record_step(
          {.recipe = recipe, .host = small_host(), .world = row.ranks, .device = at::kCUDA}
      );
      Predicted one{row, make_plan(step, recipe, machine), fitted};
      one.value = value(recipe, one.plan);
      one.free = free.empty() ? "" : "  " + free + (one.plan.fits() ? "" : ", does not fit");
      const auto rank = [](const Predicted& p) {
        return std::pair(!p.plan.fits(), p.plan.step.total);
      };
      if (!best || rank(one) < rank(*best)) {
        best = std::move(one);
      }
    }
    all.push_back(std::move(*best));
  }
  return all;
}

double root_mean_square(const std::vector<double>& errors) {
  double sum = 0;
  for (const double error : errors) {
    sum += error * error;
  }
  return std::sqrt(sum / static_cast<double>(errors.size()));
}

/// RMS error of the constant that predicts these best.
double best_constant(const std::vector<double>& published) {
  double best = 1e9;
  for (const double start : published) {
    for (double factor = 0.8; factor < 1.25; factor += 0.001) {
      std::vector<double> errors;
      for (const double value : published) {
        errors.push_back(start * factor / value - 1);
      }
      best = std::min(best, root_mean_square(errors));
    }
  }
  return best;
}

/// Prints the rows and holds those that nothing was fitted on against the table's bounds.
void judge(const PublishedTable& table, const std::vector<Predicted>& all) {
  std::printf("%s\n%s\n", table.source.c_str(), table.unit.c_str());
  std::vector<double> published, errors;               // numbers of all rows
  std::vector<double> judged_published, judged_errors; // numbers of rows that nothing was fitted on
  for (const auto& one : all) {
    const auto& step = one.plan.step;
    double waits = 0;
    for (const auto& [axis, seconds] : step.exposed) {
      waits += seconds;
    }
    std::printf(
        "  %-11s published %8.2f  predicted %8.2f  %+6.1f%%%s   (products %.0f%% attention %.0f%% "
        "memory %.0f%% waiting %.0f%% bubble %.0f%% update %.0f%%)%s\n",
        one.row.name.c_str(),
        one.row.published,
        one.value,
        100 * one.difference(),
        one.fitted ? "  fitted" : "",
        100 * step.products / step.total,
        100 * step.attention / step.total,
        100 * step.memory / step.total,
        100 * waits / step.total,
        100 * step.bubble / step.total,
        100 * step.optimizer / step.total,
        one.free.c_str()
    );
    published.push_back(one.row.published);
    errors.push_back(one.difference());
    if (!one.fitted) {
      judged_published.push_back(one.row.published);
      judged_errors.push_back(one.difference());
    }
  }
  const double rms = root_mean_square(errors), best = best_constant(published);
  const double judged_rms = root_mean_square(judged_errors);
  const double judged_best = best_constant(judged_published);
  for (double& error : judged_errors) {
    error = std::abs(error);
  }
  std::sort(judged_errors.begin(), judged_errors.end());
  const double median = judged_errors[judged_errors.size() / 2];
  std::printf(
      "  judged: worst %.1f%%, median %.1f%%; RMS of all %.2f%% (best constant %.2f%%), of the "
      "judged %.2f%% (%.2f%%)\n",
      100 * judged_errors.back(),
      100 * median,
      100 * rms,
      100 * best,
      100 * judged_rms,
      100 * judged_best
  );
  CHECK(published.size() - judged_errors.size() <= 2);
  CHECK(judged_errors.back() <= table.each);
  CHECK(median <= table.median);
  CHECK((rms <= best / 2 || !table.constant));
}

} // namespace

TEST_CASE("arXiv:2104.04473, table 1") {
  const auto table = published("2104.04473 table 1");
  judge(table, predict(table, papers_rate));
}

TEST_CASE("arXiv:2205.05198, table 5") {
  const auto table = published("2205.05198 table 5");
  const auto all = predict(table, [](const Recipe&, const Plan& plan) { return plan.step.total; });
  judge(table, all);
  for (size_t i = 0; i < all.size(); i += 2) {
    const double published = all[i].row.published / all[i + 1].row.published - 1;
    const double predicted = all[i].value / all[i + 1].value - 1;
    std::printf(
        "  saving of %s: published %.1f%%, predicted %.1f%%\n",
        all[i].row.name.c_str(),
        100 * published,
        100 * predicted
    );
    CHECK(std::abs(predicted - published) <= 0.03);
  }
}

TEST_CASE("Megatron Core on H100") {
  const auto table = published("Megatron Core H100");
  judge(table, predict(table, papers_rate));
}

TEST_CASE("Megatron Core on H100: one batch on more and more") {
  const auto table = published("Megatron Core strong scaling");
  judge(table, predict(table, papers_rate));
}

TEST_CASE("torchtitan") {
  const auto table = published("torchtitan");
  judge(table, predict(table, [](const Recipe&, const Plan& plan) {
          return plan.tokens_per_second() / static_cast<double>(plan.shape.world());
        }));
}

TEST_CASE("Llama 3 405B") {
  const auto table = published("Llama 3 405B");
  judge(table, predict(table, [](const Recipe& recipe, const Plan& plan) {
          const auto number = [&](const char* key) {
            return recipe.model.options.find(key)->as_number();
          };
          const double token = 6 * static_cast<double>(plan.parameters) +
                               12 * number("layers") * number("hidden") *
                                   static_cast<double>(recipe.model.seq_length);
          return token * plan.tokens_per_second() / static_cast<double>(plan.shape.world()) / 1e12;
        }));
}

} // namespace published_tests
