// Profiles of real steps: the tables add up to the steps' time, the parts are found in forward,
// backward and recomputation, and nothing listens otherwise.

#include "core/records/profile.hpp"

#include "core/records/profile_tables.hpp"
#include "megahost/error.hpp"
#include "megahost/recompute.hpp"
#include "tiny.hpp"

#include <ATen/record_function.h>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <map>
#include <set>
#include <string>

namespace {

class RecomputeAll : public mh::RecomputePolicy {
public:
  [[nodiscard]] mh::Keep keep(int64_t) const override { return {.everything = false}; }
};

/// The profile of two steps, as Chrome reads it.
nlohmann::json profiled(const mh::RecomputePolicy* policy, std::string* tables = nullptr) {
  tiny::Built built(tiny::config(), policy);
  mh::Profile profile;
  for (const int64_t step : {10, 11}) {
    profile.begin_step(step);
    CHECK(at::hasCallbacks());
    (void)built.gradients(/*micro=*/2);
    profile.end_step();
    CHECK_FALSE(at::hasCallbacks());
  }
  if (tables != nullptr) {
    *tables = profile.tables(/*rows=*/1000);
  }
  return nlohmann::json::parse(profile.trace());
}

/// The parts that events of a kind belong to.
std::set<std::string> parts(const nlohmann::json& trace, const std::string& kind) {
  std::set<std::string> found;
  for (const auto& event : trace["traceEvents"]) {
    if (event.value("cat", "") == kind && event.contains("args")) {
      found.insert(event["args"]["part"]);
    }
  }
  return found;
}

} // namespace

TEST_CASE("a range of steps is two numbers, or one") {
  CHECK(mh::parse_steps("10:20").first == 10);
  CHECK(mh::parse_steps("10:20").last == 20);
  CHECK(mh::parse_steps("7").has(7));
  CHECK_FALSE(mh::parse_steps("7").has(8));
  for (const char* wrong :
       {"",
        ":",
        "1:",
        ":2",
        "5:4",
        "0:3",
        "-1:3",
        "1:2:3",
        "a",
        "1 :2",
        "1.5",
        "99999999999999999999"}) {
    CAPTURE(wrong);
    CHECK_THROWS_WITH_AS(
        (void)mh::parse_steps(wrong),
        (std::string("--profile ") + wrong + " is no range of steps").c_str(),
        mh::Error
    );
  }
}

TEST_CASE("each table adds up to the steps' time, with the unassigned rest in a row of its own") {
  mh::ProfileTables tables;
  CHECK(tables.text(3).empty());
  tables.add({.operation = "aten::mm", .part = "layers.0/mlp", .micros = 30});
  tables.add({.operation = "aten::mm", .part = "layers.1/mlp", .backward = true, .micros = 50});
  tables.add({.operation = "", .part = "layers.1/mlp", .micros = 5});
  tables.add({.operation = "aten::add", .part = "", .micros = 5});
  tables.add_step(100);
  for (const auto& rows : {tables.operations(), tables.parts(), tables.blocks()}) {
    double sum = 0;
    for (const auto& row : rows) {
      sum += row.all();
    }
    CHECK(sum == doctest::Approx(100));
  }
  CHECK(tables.operations()[0].name == "aten::mm");
  CHECK(tables.operations()[0].calls == 2);
  CHECK(tables.operations()[0].forward == 30);
  CHECK(tables.operations()[0].backward == 50);
  CHECK(tables.operations()[1].name == "(between operations)");
  CHECK(tables.operations()[1].all() == doctest::Approx(15));
  CHECK(tables.parts()[0].name == "layers.*/mlp");
  CHECK(tables.parts()[0].all() == doctest::Approx(85));
  CHECK(tables.blocks()[0].name == "layers.1");
  CHECK(tables.text(1).find("(2 more)") != std::string::npos);
}

TEST_CASE("a trace parses and its events lie within their steps") {
  std::string tables;
  const auto trace = profiled(nullptr, &tables);
  std::map<std::string, std::pair<double, double>> steps;
  double operations = 0, all = 0;
  for (const auto& event : trace["traceEvents"]) {
    if (event.value("cat", "") == "step") {
      steps[event["name"]] = {event["ts"], event["ts"].get<double>() + event["dur"].get<double>()};
      all += event["dur"].get<double>();
    }
  }
  REQUIRE(steps.size() == 2);
  REQUIRE(steps.count("step 10") == 1);
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "X" && event["cat"] != "step") {
      const double begin = event["ts"], end = begin + event["dur"].get<double>();
      bool inside = false;
      for (const auto& [name, step] : steps) {
        inside = inside || (begin >= step.first - 1e-3 && end <= step.second + 1e-3);
      }
      CHECK(inside);
      ++operations;
    }
  }
  CHECK(operations > 100);
  CHECK(all > 0);
  CHECK(tables.find("aten::") != std::string::npos);
  CHECK(tables.find("autograd::engine ") != std::string::npos); // one row for all nodes
  CHECK(tables.find("LinearFunction") != std::string::npos);
  CHECK(tables.find("CppNode") == std::string::npos);
  CHECK(tables.find("layers.*/attention") != std::string::npos);
}

TEST_CASE("operations of forward and backward find their part, recomputed ones too") {
  const RecomputeAll recompute;
  for (const mh::RecomputePolicy* policy :
       {static_cast<const mh::RecomputePolicy*>(nullptr),
        static_cast<const mh::RecomputePolicy*>(&recompute)}) {
    const auto trace = profiled(policy);
    const auto nodes = parts(trace, "backward");
    const auto operations = parts(trace, "operation");
    for (const char* part :
         {"embedding/embedding",
          "layers.0/attention",
          "layers.0/mlp",
          "layers.0/norm",
          "layers.1/attention",
          "layers.1/mlp",
          "head/norm",
          "head/vocabulary"}) {
      CAPTURE(part);
      CHECK(operations.count(part) == 1);
      CHECK(nodes.count(part) == 1);
    }
  }
}
