// Runs that start from a part of another's checkpoint: `load`.

#include "megahost/checkpoint_format.hpp"
#include "runs.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

#include <doctest/doctest.h>

namespace {

/// A run of 12 steps whose checkpoints of steps 4, 8 and 12 others start from.
struct Started {
  runs::Folder folder;
  mh::Recipe source = runs::recipe(folder / "source");
  runs::Lines output;

  Started() {
    source.checkpoint.interval = 4;
    source.checkpoint.async = false;
    (void)runs::train(source, output);
  }

  /// The source's recipe for another folder, which loads its step 4.
  mh::Recipe other(const std::string& name) {
    mh::Recipe recipe = source;
    recipe.checkpoint.dir = folder / name;
    recipe.load.from = source.checkpoint.dir;
    recipe.load.step = 4;
    return recipe;
  }

  mh::TrainSummary train(const mh::Recipe& recipe, std::vector<std::string> allowed = {}) {
    auto plugins = runs::host();
    output.lines.clear();
    return mh::train(
        recipe, plugins, {.allow_change = std::move(allowed), .closing = false}, output
    );
  }

  std::string refusal(const mh::Recipe& recipe, std::vector<std::string> allowed = {}) {
    try {
      (void)train(recipe, std::move(allowed));
    } catch (const mh::Error& error) {
      return std::string(error.what()) + "\n" + error.hint();
    }
    return "accepted";
  }

  static at::Tensor tensor(const mh::Recipe& recipe, int64_t step, const std::string& name) {
    auto plugins = runs::host();
    const auto format =
        plugins.make<mh::CheckpointFormat>("native", mh::Table(), {.storage = plugins.storage()});
    const auto saved = format->open(recipe.checkpoint.dir, step);
    const mh::CheckpointTensor* found = saved->find(name);
    REQUIRE(found != nullptr);
    const mh::Slice whole{
        name,
        found->shape,
        std::vector<int64_t>(found->shape.size()),
        at::zeros(found->shape, at::TensorOptions(found->dtype))};
    saved->read({&whole, 1});
    return whole.local;
  }
};

std::vector<double> losses_of(const mh::Recipe& recipe) {
  std::vector<double> values;
  for (const auto& line : runs::metrics(recipe.checkpoint.dir)) {
    if (const auto at = line.find("\"lm loss\":"); at != std::string::npos) {
      values.push_back(std::stod(line.substr(at + 10)));
    }
  }
  return values;
}

bool check_words(const std::string& text, const std::string& part) {
  CAPTURE(text);
  CAPTURE(part);
  const bool found = text.find(part) != std::string::npos;
  CHECK(found);
  return found;
}

/// Load all that a run's state has.
void take_all(mh::Recipe& recipe) {
  recipe.load.optimizer = recipe.load.progress = recipe.load.rng = recipe.load.data = true;
}

} // namespace

TEST_CASE_FIXTURE(Started, "a run that takes all of another's state goes on as that did") {
  auto recipe = other("all");
  take_all(recipe);
  (void)train(recipe);
  CHECK(output.say("weights and optimizer: " + source.checkpoint.dir + ", step 4"));
  CHECK(output.say("steps are counted on from 4"));
  CHECK(runs::tensors(recipe.checkpoint.dir, 12) == runs::tensors(source.checkpoint.dir, 12));
  const auto expected = losses_of(source);
  CHECK(losses_of(recipe) == std::vector<double>(expected.begin() + 4, expected.end()));
  // A run that counts its steps from 0 does so, too, and goes on after a stop.
  recipe = other("from 0");
  take_all(recipe);
  recipe.load.progress = false;
  recipe.lr_schedule = {"constant", mh::Table{}};
  recipe.train.iters = 6;
  (void)train(recipe);
  auto counted = other("counted");
  take_all(counted);
  counted.lr_schedule = recipe.lr_schedule;
  counted.train.iters = 10;
  (void)train(counted);
  CHECK(losses_of(recipe) == losses_of(counted));
  auto parts = recipe;
  parts.checkpoint.dir = folder / "parts";
  parts.train.exit_iters = 3;
  (void)train(parts);
  parts.train.exit_iters.reset();
  parts.load.from = folder / "gone"; // which a run that goes on does not need
  (void)runs::train(parts, output, /*resume=*/true);
  CHECK(runs::tensors(parts.checkpoint.dir, 6) == runs::tensors(recipe.checkpoint.dir, 6));
  CHECK(losses_of(parts) == losses_of(recipe));
}

TEST_CASE_FIXTURE(Started, "without the optimizer's state the first steps are a fresh one's") {
  auto fresh = other("fresh");
  fresh.lr_schedule = {"constant", mh::Table{}};
  fresh.train.iters = 3;
  fresh.load.rng = fresh.load.data = true;
  (void)train(fresh);
  auto without = fresh;
  without.checkpoint.dir = folder / "without";
  without.load.progress = true;
  without.train.iters = 7;
  (void)train(without);
  CHECK(losses_of(without) == losses_of(fresh));
  const std::string name = "optimizer.exp_avg.layers.0.attention.q.weight";
  CHECK(tensor(without, 7, name).equal(tensor(fresh, 3, name)));
  auto with = without;
  with.checkpoint.dir = folder / "with";
  with.load.optimizer = true;
  (void)train(with);
  CHECK(losses_of(with)[0] == losses_of(without)[0]); // the same weights, data and masks
  CHECK(losses_of(with)[1] != losses_of(without)[1]);
}

TEST_CASE_FIXTURE(
    Started, "without random numbers masks differ, and without the position data do"
) {
  auto all = other("all");
  take_all(all);
  all.train.iters = 5;
  (void)train(all);
  for (const bool dropout : {true, false}) {
    auto recipe = all;
    recipe.load.rng = false;
    recipe.checkpoint.dir = folder / (dropout ? "masks" : "no masks");
    recipe.model.options.as_table().set("dropout", dropout ? 0.1 : 0.0);
    (void)train(recipe, {"model.dropout"});
    auto reference = recipe;
    reference.load.rng = true;
    reference.checkpoint.dir = folder / (dropout ? "reference" : "no reference");
    (void)train(reference, {"model.dropout"});
    CHECK((losses_of(recipe) == losses_of(reference)) == !dropout);
  }
  auto data = all;
  data.load.data = false;
  data.checkpoint.dir = folder / "data";
  (void)train(data);
  CHECK(losses_of(data) != losses_of(all));
}

TEST_CASE_FIXTURE(Started, "another vocabulary: the embedding keeps its initial values") {
  auto recipe = other("vocabulary");
  recipe.tokenizer = {"null", mh::Table{{"vocab", 24}}};
  recipe.optimizer.lr = 0;
  recipe.lr_schedule = {"constant", mh::Table{}};
  recipe.train.iters = 1;
  const std::string sentence = refusal(recipe);
  check_words(
      sentence, "does not fit the recipe's model: tensor \"embedding.word.weight\" has shape"
  );
  check_words(sentence, "load.match leaves tensors at their initial values");
  recipe.load.match = {{"embedding.word.*", false}};
  auto fresh = recipe;
  fresh.load = {};
  fresh.checkpoint.dir = folder / "fresh";
  (void)train(fresh);
  recipe.load.optimizer = true; // state of what is loaded; the rest begins at zero
  recipe.checkpoint.dir = folder / "partial";
  (void)train(recipe, {"tokenizer"});
  CHECK(output.say("were loaded, at their initial values are \"embedding.word.weight\""));
  const std::string q = "layers.1.attention.q.weight", words = "embedding.word.weight";
  CHECK(tensor(recipe, 1, q).equal(tensor(source, 4, q)));
  CHECK_FALSE(tensor(fresh, 1, q).equal(tensor(source, 4, q)));
  CHECK(tensor(recipe, 1, words).equal(tensor(fresh, 1, words)));
}

TEST_CASE_FIXTURE(
    Started, "another family with more layers takes what both have, and says the rest"
) {
  auto recipe = other("family");
  recipe.model.use = "llama";
  recipe.model.options = mh::Table{{"layers", 3}, {"hidden", 16}, {"heads", 2}, {"ffn_hidden", 32}};
  recipe.optimizer.lr = 0;
  recipe.lr_schedule = {"constant", mh::Table{}};
  recipe.train.iters = 1;
  recipe.load.match = {{"layers.*.mlp.*", false}};
  CHECK(refusal(recipe) != "accepted");
  recipe.load.strict = false;
  (void)train(recipe);
  const std::string q = "layers.1.attention.q.weight";
  CHECK(tensor(recipe, 1, q).equal(tensor(source, 4, q)));
  CHECK(output.say("at their initial values are \"head.weight\", \"layers.0.mlp."));
  CHECK(output.say("no place in the model is for the checkpoint's "));
  // A layer may be filled from another one's.
  recipe = other("deeper");
  recipe.model.options.as_table().set("layers", 3);
  recipe.optimizer.lr = 0;
  recipe.lr_schedule = {"constant", mh::Table{}};
  recipe.train.iters = 1;
  recipe.load.match = {{"layers.2.*", "layers.1.*"}};
  (void)train(recipe, {"model.layers"});
  CHECK(output.say("were loaded"));
  CHECK(tensor(recipe, 1, "layers.2.attention.q.weight").equal(tensor(source, 4, q)));
}

TEST_CASE_FIXTURE(Started, "what cannot be loaded is refused with a sentence") {
  auto recipe = other("refused");
  recipe.load.match = {{"haed.*", false}};
  check_words(refusal(recipe), "load.match: \"haed.*\" fits no tensor that the model asks for");
  recipe.load.match = {{"*", false}};
  check_words(refusal(recipe), "has no tensor that the recipe's model asks for");
  recipe.load.match = {{"layers.0.*", "blocks.0.*"}};
  check_words(
      refusal(recipe), "holds the tensor layers.0.attention.k.bias, for which the recipe's"
  );
  recipe.load.match = {{"layers.0.*", "layers.9.*"}, {"layers.1.*", "layers.0.*"}};
  recipe.load.strict = false;
  (void)train(recipe);
  CHECK(output.say("at their initial values are \"layers.0.attention.k.bias\""));
  recipe = other("refused");
  recipe.load.step = 5;
  check_words(refusal(recipe), "holds no checkpoint of step 5");
  recipe = other("refused");
  recipe.optimizer.use = "lion";
  recipe.optimizer.options = mh::Table();
  recipe.load.optimizer = true;
  (void)train(recipe); // whose state adamw has, and more
  recipe.optimizer.use = "sgd";
  recipe.optimizer.options = mh::Table{{"momentum", 0.9}};
  check_words(refusal(recipe), "there is no tensor \"optimizer.momentum");
}
