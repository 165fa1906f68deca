#include "megahost/schema.hpp"

#include "core/base/text.hpp"
#include "core/language/problem.hpp"
#include "fixture.hpp"

#include <doctest/doctest.h>

#include <cmath>

namespace schema_tests {

using mh::Table;
using mh::Value;
using mh::test::refusal;

namespace {

struct Config {
  int64_t layers = 12;
  double dropout = 0.5;
  std::string activation = "gelu";
  std::optional<int64_t> head_dim;
  std::vector<double> betas{0.9, 0.95};
  std::vector<std::string> paths;
  bool tied = true;
  mh::StringOr<int64_t> data = "auto";
  std::map<std::string, double> weights;
};

mh::Fields<Config> fields() {
  mh::Fields<Config> f;
  f.add("layers", &Config::layers, "number of blocks").at_least(1);
  f.add("dropout", &Config::dropout, "probability").at_least(0).below(1);
  f.add("activation", &Config::activation, "kind")
      .one_of({"gelu", "relu"})
      .refuse("tanh", "tanh was too slow");
  f.add("head_dim", &Config::head_dim, "size of a head").at_least(1);
  f.add("betas", &Config::betas, "decay rates").range(0, 1);
  f.add("paths", &Config::paths, "files");
  f.add("tied", &Config::tied, "shared weights");
  f.add("data", &Config::data, "copies").at_least(1).one_of({"auto"});
  f.add("weights", &Config::weights, "by name");
  f.check("layers", [](const Config& c) -> std::string {
    return c.head_dim && c.layers % *c.head_dim != 0 ? "layers do not divide" : "";
  });
  return f;
}

std::string why(const Table& table) {
  return refusal([&] { static_cast<void>(fields().read(table, "model")); });
}

} // namespace

TEST_CASE("a table is read into its struct, defaults filled in") {
  const Config plain = fields().read(Value());
  CHECK(plain.layers == 12);
  CHECK(plain.betas == std::vector{0.9, 0.95});
  CHECK_FALSE(plain.head_dim);
  CHECK(std::get<std::string>(plain.data) == "auto");
  const Config read = fields().read(Table{
      {"layers", 8.0},
      {"dropout", 0},
      {"head_dim", 4},
      {"betas", Value::Array{}},
      {"paths", Value::Array{"a", "b"}},
      {"tied", false},
      {"data", 4},
      {"weights", Table{{"x", 1}, {"y", 0.5}}}});
  CHECK(read.layers == 8);
  CHECK(read.dropout == 0.0);
  CHECK(read.head_dim == 4);
  CHECK(read.betas.empty());
  CHECK(read.paths == std::vector<std::string>{"a", "b"});
  CHECK_FALSE(read.tied);
  CHECK(std::get<int64_t>(read.data) == 4);
  CHECK(read.weights == std::map<std::string, double>{{"x", 1.0}, {"y", 0.5}});
}

TEST_CASE("the completed table is in the schema's order and of the schema's types") {
  std::vector<mh::Problem> problems;
  const Value table = mh::complete(
      fields().schema(), Table{{"tied", true}, {"layers", 3.0}, {"dropout", 0}}, "model", problems
  );
  CHECK(problems.empty());
  CHECK(table.as_table().begin()->key == "layers");
  CHECK(table.find("layers")->is_integer());
  CHECK(table.find("dropout")->type() == Value::Type::number);
  CHECK(table.find("head_dim") == nullptr);
  CHECK(mh::complete(fields().schema(), table, "model", problems) == table);
}

TEST_CASE("what a schema refuses") {
  CHECK(why({{"layers", 0}}).starts_with("model.layers is 0, expected at least 1"));
  CHECK(why({{"layers", 2.5}}).starts_with("model.layers is 2.5, expected an integer, at least 1"));
  CHECK(why({{"layers", true}}).starts_with("model.layers is true, expected an integer"));
  CHECK(why({{"dropout", 1}}).starts_with("model.dropout is 1.0, expected at least 0 and below 1"));
  CHECK(why({{"dropout", std::nan("")}}
  ).starts_with("model.dropout is nan, expected a finite number"));
  CHECK(why({{"activation", "tanh"}}).starts_with("model.activation tanh was too slow"));
  CHECK(why({{"activation", "gelo"}}).find("did you mean `gelu`?") != std::string::npos);
  CHECK(why({{"betas", 0.9}}).starts_with("model.betas is 0.9, expected a list of numbers"));
  CHECK(why({{"betas", Value::Array{0.9, 2}}}
  ).starts_with("model.betas holds 2.0, expected at least 0 and at most 1"));
  CHECK(why({{"data", "all"}}
  ).starts_with("model.data is \"all\", expected an integer, at least 1 or `auto`"));
  CHECK(why({{"weights", 3}}).starts_with("model.weights is 3, expected a table"));
  CHECK(why({{"head_dim", 5}}).starts_with("model.layers: layers do not divide"));
  CHECK(why({{"layers", 0}, {"tid", true}}).find("\n\nerror: ") != std::string::npos);
}

TEST_CASE("values say what they are when they are read as something else") {
  CHECK(refusal([] {
          static_cast<void>(Value("x").as_integer());
        }) == "found a string \"x\", expected an integer");
  CHECK(Value(3.0).as_integer() == 3);
  CHECK(refusal([] {
          static_cast<void>(Value(1e300).as_integer());
        }) == "found a number 1e300, expected an integer");
  CHECK(Value(Table{{"a", 1}, {"b", 2}}) == Value(Table{{"b", 2}, {"a", 1}}));
  CHECK_FALSE(Value(1) == Value(1.0));
}

TEST_CASE("numbers are written in their shortest exact form") {
  CHECK(mh::number_text(0.95) == "0.95");
  CHECK(mh::number_text(3e-4) == "3e-4");
  CHECK(mh::number_text(1.5e-5) == "1.5e-5");
  CHECK(mh::number_text(1e6) == "1e6");
  CHECK(mh::number_text(1) == "1.0");
  CHECK(mh::number_text(1e100) == "1e100");
  CHECK(mh::number_text(0.1 + 0.2) == "0.30000000000000004");
  for (const double number : {1.0 / 3, 5e-324, 1.7976931348623157e308, -2.5e-7}) {
    CHECK(std::strtod(mh::number_text(number).c_str(), nullptr) == number);
  }
}

TEST_CASE("the nearest word") {
  const std::vector<std::string> words{"layers", "hidden", "heads", "kv_heads"};
  CHECK(mh::nearest("layrs", words) == "layers");
  CHECK(mh::nearest("hiddne", words) == "hidden");
  CHECK(mh::nearest("head", words) == "heads");
  CHECK_FALSE(mh::nearest("zebra", words));
  CHECK(mh::nearest("relu", {"gelu", "relu2"}) == "relu2"); // two are near, one begins alike
  CHECK(mh::edit_distance("ab", "ba", 3) == 1);
  CHECK(mh::edit_distance("kitten", "sitting", 9) == 3);
  CHECK(mh::edit_distance("kitten", "sitting", 2) == 3);
}

TEST_CASE("a long line is cut around the caret, wide characters count once") {
  auto source = std::make_shared<mh::Source>();
  source->name = "a.toml";
  source->text = std::string(200, 'x') + "y" + std::string(200, 'z') + "\n\té = 1\n";
  mh::Problem problem;
  problem.message = "message";
  problem.label = "here";
  problem.origin = {source, 1, 201, 1};
  const std::string cut = mh::render(problem);
  const auto column = [&cut](size_t at) { return at - cut.rfind('\n', at); };
  CHECK(column(cut.find("^ here")) == column(cut.find('y', cut.find("..."))));
  problem.label = "";
  problem.origin = {source, 2, 7, 1};
  CHECK(mh::render(problem).ends_with(" 2 |  é = 1\n   |      ^"));
}

} // namespace schema_tests
