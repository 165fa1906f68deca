#include "core/recipe/sweep.hpp"

#include "fixture.hpp"

#include <doctest/doctest.h>

#include <set>

namespace sweep_tests {

namespace {

mh::Value sweep_of(const std::string& toml) {
  const mh::test::Folder folder;
  return mh::evaluate(folder.write("sweep.toml", toml));
}

std::vector<std::string> labels(const mh::Value& sweep) {
  std::vector<std::string> all;
  for (const mh::SweepPoint& point : mh::sweep_points(sweep)) {
    all.push_back(point.label());
  }
  CHECK(static_cast<int64_t>(all.size()) == mh::count_points(sweep));
  return all;
}

std::string why(const std::string& toml) {
  return mh::test::refusal([&] { static_cast<void>(mh::sweep_points(sweep_of(toml))); });
}

using Labels = std::vector<std::string>;

} // namespace

TEST_CASE("a grid is each value with each of the others, the last key fastest") {
  CHECK(
      labels(sweep_of("[grid]\n\"optimizer.lr\" = [1e-4, 3e-4]\nbatch.global = [8, 16]\n")) ==
      Labels{"lr=1e-4 global=8", "lr=1e-4 global=16", "lr=3e-4 global=8", "lr=3e-4 global=16"}
  );
}

TEST_CASE("a row's name stands for its values") {
  CHECK(
      labels(sweep_of("list = [{ train.seed = 1, notes = { name = \"a\" } }]\n"
                      "[grid]\nbatch.global = [8, 16]\n")) == Labels{"a global=8", "a global=16"}
  );
}

TEST_CASE("a key that is no part of a sweep is refused") {
  const std::string said = why("grid.\"optimizer.lr\" = [1e-4]\noptimizer.lr = [1e-4, 3e-4]\n");
  CHECK(said.find("unknown option `optimizer` in sweep") != std::string::npos);
  CHECK(
      said.find("keys and their values belong in grid, zip, list or random") != std::string::npos
  );
}

TEST_CASE("zip walks side by side, list is rows, and the parts multiply") {
  CHECK(
      labels(sweep_of("[zip]\nmodel.layers = [2, 4]\nmodel.hidden = [64, 128]\n")) ==
      Labels{"layers=2 hidden=64", "layers=4 hidden=128"}
  );
  const mh::Value both = sweep_of(
      "list = [{ name = \"a\", preset = \"7b-8\", notes = { published = 5 } }, { name = \"b\" }]\n"
      "[grid]\ntrain.seed = [1, 2]\n"
  );
  CHECK(
      labels(both) ==
      Labels{
          "name=a preset=7b-8 seed=1",
          "name=a preset=7b-8 seed=2",
          "name=b seed=1",
          "name=b seed=2"}
  );
  const auto points = mh::sweep_points(both);
  CHECK(points[1].notes.find("published")->as_integer() == 5);
  CHECK(points[2].notes.size() == 0);
  CHECK(points[1].layer().tree.find_path("train.seed")->as_integer() == 2);
  CHECK(points[1].layer().tree.find("notes") == nullptr);
}

TEST_CASE("random draws the same values each time, within their ranges") {
  const mh::Value sweep = sweep_of(
      "[random]\ncount = 200\nseed = 3\n\"optimizer.lr\" = { from = 1e-5, to = 1e-3, log = true }\n"
      "\"batch.global\" = { from = 2, to = 5 }\n\"model.activation\" = [\"gelu\", \"swiglu\"]\n"
  );
  CHECK(labels(sweep) == labels(sweep));
  int low = 0;
  std::set<int64_t> sizes;
  std::set<std::string> words;
  for (const mh::SweepPoint& point : mh::sweep_points(sweep)) {
    const double lr = point.values[0].second.as_number();
    CHECK(lr >= 1e-5);
    CHECK(lr <= 1e-3);
    low += lr < 1e-4 ? 1 : 0;
    sizes.insert(point.values[1].second.as_integer());
    words.insert(point.values[2].second.as_string());
  }
  CHECK(low > 70); // half of a range of logarithms lies below its middle
  CHECK(low < 130);
  CHECK(sizes == std::set<int64_t>{2, 3, 4, 5});
  CHECK(words.size() == 2);
}

TEST_CASE("sweeps that are none are refused at their place") {
  CHECK(why("[grid]\noptimizer.lr = 3\n")
            .starts_with("optimizer.lr in sweep.grid is 3, expected a list of values"));
  CHECK(why("[grid]\noptimizer.lr = []\n")
            .starts_with("optimizer.lr in sweep.grid is [], expected a list"));
  CHECK(why("grid = 3\n").starts_with("sweep.grid is 3, expected lists of values by key"));
  CHECK(why("list = [3]\n").starts_with("a row of sweep.list is 3, expected a table"));
  CHECK(why("list = []\n").starts_with("sweep.list is [], expected a list of tables"));
  CHECK(why("[zip]\na.b = [1, 2]\na.c = [1]\n")
            .starts_with("a.c in sweep.zip has 1 values, expected as many as a.b: 2"));
  CHECK(why("[random]\na.b = { from = 2, to = 1 }\n")
            .starts_with("a.b in sweep.random is { from = 2, to = 1 }, expected"));
  CHECK(why("[random]\na.b = { from = 0, to = 1, log = true }\n").starts_with("a.b in sweep.random")
  );
  CHECK(why("[random]\ncount = \"x\"\na.b = [1]\n")
            .starts_with("sweep.random.count is \"x\", expected a whole number"));
}

TEST_CASE("the command line's additions") {
  const mh::SweepAdditions added = mh::sweep_additions(
      {"optimizer.lr=1e-4,3e-4",
       "train.seed=7",
       "optimizer.betas=[0.9, 0.95],[0.9, 0.99]",
       "model.activation=gelu,swiglu"},
      {"model.layers=2,4", "model.hidden=64,128"},
      {"optimizer.eps=log:1e-9..1e-7"},
      5
  );
  CHECK(added.fixed == std::vector<std::string>{"train.seed=7"});
  CHECK(mh::count_points(added.sweep) == 2 * 2 * 2 * 2 * 5);
  const auto points = mh::sweep_points(added.sweep);
  CHECK(points.front().values[2].second.as_number() == 1e-4);
  CHECK(mh::to_text(points.front().values[3].second) == "[0.9, 0.95]");
  CHECK(points.front().values[4].second.as_string() == "gelu");
  CHECK(mh::test::refusal([] { static_cast<void>(mh::sweep_additions({"lr"}, {}, {}, 1)); }
  ).starts_with("--set lr has no key or no value"));
  CHECK(mh::test::refusal([] {
          static_cast<void>(mh::sweep_additions({"a.b=1,two words"}, {}, {}, 1));
        }) != "");
}

TEST_CASE("a recipe's sweep is checked with the rest of it") {
  const mh::test::Folder folder;
  const std::string model =
      "model = { use = \"gpt\", layers = 2, hidden = 64, heads = 4 }\ntrain.iters = 5\n";
  const auto file = folder.write("a.toml", model + "[sweep.grid]\noptimizer.lr = [1e-4, 3e-4]\n");
  CHECK(mh::count_points(mh::test::resolve_file(file).recipe.sweep) == 2);
  const auto bad = folder.write("b.toml", model + "[sweep.grid]\noptimizer.lr = 3\n");
  const std::string why =
      mh::test::refusal([&] { static_cast<void>(mh::test::resolve_file(bad)); });
  CHECK(why.starts_with("optimizer.lr in sweep.grid is 3, expected a list of values"));
  CHECK(why.find("b.toml:4:16") != std::string::npos);
}

} // namespace sweep_tests
