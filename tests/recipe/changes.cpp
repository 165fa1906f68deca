#include "core/recipe/changes.hpp"

#include "fixture.hpp"

#include <doctest/doctest.h>

namespace changes_tests {

using mh::test::Folder;

namespace {

const std::string kRecipe =
    "[model]\nuse = \"llama\"\nlayers = 6\nhidden = 64\nheads = 8\n[train]\niters = 10\n"
    "[tokenizer]\nuse = \"null\"\nvocab = 50\n";

mh::Resolved resolved(const std::string& text, const std::vector<std::string>& sets = {}) {
  const Folder folder;
  mh::LoadOptions options = mh::test::options();
  options.sets = sets;
  return mh::test::resolve_file(folder.write("a.toml", text), options);
}

/// The keys that differ if a run with kRecipe goes on with other values: those that must stay, then
/// others.
std::pair<std::vector<std::string>, std::vector<std::string>>
changed(const std::vector<std::string>& sets) {
  const auto saved = mh::section_texts(resolved(kRecipe).recipe.tree);
  const auto now = resolved(kRecipe, sets);
  std::pair<std::vector<std::string>, std::vector<std::string>> texts;
  for (const mh::KeyChange& change : mh::changes_since(saved, now.recipe.tree, now.schemas)) {
    (change.may_change ? texts.second : texts.first).push_back(change.text());
  }
  return texts;
}

using Texts = std::vector<std::string>;

} // namespace

TEST_CASE("what decides a run's numbers must stay, each key with both values") {
  CHECK(changed({}) == std::pair<Texts, Texts>{});
  CHECK(changed({"model.layers=5"}).first == Texts{"model.layers 5 (checkpoint 6)"});
  CHECK(
      changed({"model.heads=4", "model.kv_heads=2", "model.rope_base=20000"}).first ==
      Texts{
          "model.heads 4 (checkpoint 8)",
          "model.kv_heads 2 (checkpoint not set)",
          "model.rope_base 20000.0 (checkpoint 10000.0)"}
  );
  for (const char* set :
       {"tokenizer.vocab=40",
        "optimizer.betas=[0.8, 0.9]",
        "optimizer.clip_grad=2",
        "data.split=[50, 50, 0]",
        "train.seed=5",
        "batch.global=4",
        "precision=\"bf16\"",
        "fp8.history=7",
        "parallel.reduce_dtype=\"bf16\"",
        "optimizer.groups=[{match=[\"*\"], frozen=true}]"}) {
    CAPTURE(set);
    CHECK(changed({set}).first.size() == 1);
    CHECK(changed({set}).second.empty());
  }
}

TEST_CASE("what a run may change when it goes on") {
  for (const char* set :
       {"train.iters=20",
        "optimizer.lr=0.5",
        "optimizer.weight_decay=0",
        "lr_schedule.use=\"cosine\"",
        "parallel.tensor=2",
        "recompute.use=\"full\"",
        "batch.micro=1",
        "guards.nan=\"skip\"",
        "checkpoint.interval=5",
        "log.interval=1",
        "optimizer.offload=true"}) {
    CAPTURE(set);
    const auto texts = changed({"batch.global=1", set});
    CHECK(texts.first.empty());
  }
  CHECK(changed({"train.iters=20"}).second == Texts{"train.iters 20 (checkpoint 10)"});
}

TEST_CASE("of another plugin only its name and what both plugins have is compared") {
  CHECK(
      changed({"optimizer.use=\"sgd\""}).first == Texts{"optimizer.use \"sgd\" (checkpoint "
                                                        "\"adamw\")"}
  );
}

TEST_CASE("a plugin says of its own fields whether they may change") {
  struct Own {
    int64_t workers = 1, order = 1;
  };

  mh::Fields<Own> fields;
  fields.add("workers", &Own::workers, "threads that read").may_change();
  fields.add("order", &Own::order, "of the samples");
  mh::test::Plugins plugins;
  plugins.add(mh::Kind::corpus, "own", fields.schema());
  const Folder folder;
  const auto file = folder.write("a.toml", "data.use = \"own\"\n" + kRecipe);
  const auto tree = [&](const std::string& set) {
    mh::LoadOptions options = mh::test::options();
    options.sets = {set};
    return mh::resolve(mh::load_recipe(file, options), plugins.lookup(), {});
  };
  const auto saved = mh::section_texts(tree("train.iters=10").recipe.tree);
  const auto change = [&](const std::string& set) {
    const auto now = tree(set);
    const auto changes = mh::changes_since(saved, now.recipe.tree, now.schemas);
    REQUIRE(changes.size() == 1);
    return changes.front().may_change;
  };
  CHECK(change("data.workers=3"));
  CHECK_FALSE(change("data.order=3"));
}

TEST_CASE("a checkpoint of an older megahost: fields that it did not know have their defaults") {
  std::map<std::string, std::string> saved{
      {"model", R"({ use = "llama", layers = 6, hidden = 64, heads = 8 })"}, {"train.seed", "7"}};
  const auto now = resolved(kRecipe);
  const auto changes = mh::changes_since(saved, now.recipe.tree, now.schemas);
  REQUIRE(changes.size() == 1);
  CHECK(changes[0].text() == "train.seed 1234 (checkpoint 7)");
}

TEST_CASE("--allow-change takes keys and sections that there are") {
  CHECK(mh::is_allowed({"model"}, "model.window"));
  CHECK(mh::is_allowed({"model.window"}, "model.window"));
  CHECK_FALSE(mh::is_allowed({"model.window"}, "model.window_pattern"));
  CHECK_FALSE(mh::is_allowed({"mod"}, "model.window"));
  const auto schemas = resolved(kRecipe).schemas;
  mh::check_allowed({"model", "model.window", "precision"}, schemas);
  try {
    mh::check_allowed({"model.windo"}, schemas);
    FAIL("accepted");
  } catch (const mh::Error& error) {
    CHECK(
        std::string(error.what()) ==
        "--allow-change model.windo: this recipe has no such key or section"
    );
    CHECK(error.hint() == "did you mean model.window?");
  }
}

} // namespace changes_tests
