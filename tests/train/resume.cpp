// What a resumed run takes of a checkpoint, what it refuses, and what it tells.

#include "runs.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <stdexcept>

namespace {

/// The recipe with the tree that a file would have given it.
mh::Recipe with_tree(mh::Recipe recipe) {
  const auto section = [](const std::string& use, const mh::Value& options) {
    mh::Table table{{"use", use}};
    for (const auto& entry : options.as_table()) {
      table.set(entry.key, entry.value);
    }
    return table;
  };
  mh::Table model = section(recipe.model.use, recipe.model.options);
  model.set("seq_length", recipe.model.seq_length);
  mh::Table optimizer = section(recipe.optimizer.use, recipe.optimizer.options);
  optimizer.set("lr", recipe.optimizer.lr);
  recipe.tree = mh::Table{
      {"precision", recipe.precision},
      {"model", model},
      {"optimizer", optimizer},
      {"data", section(recipe.data.use, recipe.data.options)},
      {"tokenizer", section(recipe.tokenizer.use, recipe.tokenizer.options)},
      {"train", mh::Table{{"iters", *recipe.train.iters}, {"seed", recipe.train.seed}}}};
  return recipe;
}

mh::Recipe llama(const runs::fs::path& folder) {
  mh::Recipe recipe = runs::recipe(folder);
  recipe.model.use = "llama";
  recipe.model.options = mh::Table{{"layers", 3}, {"hidden", 32}, {"heads", 4}};
  recipe.train.iters = 4;
  return recipe;
}

struct Told {
  std::string what, hint;
};

/// Goes on with a recipe; what it is refused with.
Told go_on(
    const mh::Recipe& recipe,
    runs::Lines& output,
    const std::vector<std::string>& allowed = {},
    mh::Resume resume = mh::Resume::yes
) {
  auto plugins = runs::host();
  try {
    (void)mh::train(
        with_tree(recipe),
        plugins,
        {.resume = resume, .allow_change = allowed, .closing = false, .recipe_text = "resumed"},
        output
    );
  } catch (const mh::Error& error) {
    return {error.what(), error.hint()};
  }
  return {};
}

/// A run of two steps, to be resumed.
mh::Recipe saved(const runs::Folder& folder) {
  auto recipe = llama(folder / "a");
  recipe.train.exit_iters = 2;
  runs::Lines output;
  (void)runs::train(with_tree(recipe), output);
  recipe.train.exit_iters.reset();
  return recipe;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

} // namespace

TEST_CASE("a checkpoint of another model is refused with each key, and its folder stays as it was"
) {
  const runs::Folder folder;
  const auto recipe = saved(folder);
  const std::string before = runs::contents(folder / "a/recipe.toml");
  auto other = recipe;
  other.model.options =
      mh::Table{{"layers", 2}, {"hidden", 32}, {"heads", 2}, {"rope_base", 2e4}, {"kv_heads", 1}};
  other.train.seed = 7;
  runs::Lines output;
  const Told told = go_on(other, output);
  const std::string run = (folder / "a").string();
  CHECK(
      told.what == "the checkpoint of step 2 in " + run +
                       " is of another recipe: model.layers 2 (checkpoint 3), model.heads 2 "
                       "(checkpoint 4), model.rope_base 20000.0 (checkpoint not set), "
                       "model.kv_heads 1 (checkpoint not set), train.seed 7 (checkpoint 1234)"
  );
  CHECK(
      told.hint == "resume with the checkpoint's values, begin a new run with --weights " + run +
                       ", or say that you mean it: --allow-change model.layers --allow-change "
                       "model.heads --allow-change model.rope_base --allow-change model.kv_heads "
                       "--allow-change train.seed"
  );
  CHECK(runs::contents(folder / "a/recipe.toml") == before);
  CHECK_FALSE(runs::fs::exists(runs::step_folder(folder / "a", 4)));
}

TEST_CASE("--allow-change goes on and says so in the log; what may change needs no word") {
  const runs::Folder folder;
  auto recipe = saved(folder);
  recipe.model.options = mh::Table{{"layers", 3}, {"hidden", 32}, {"heads", 2}};
  recipe.train.iters = 3;
  runs::Lines output;
  CHECK(contains(go_on(recipe, output, {"model.layers"}).what, ": model.heads 2 (checkpoint 4)"));
  CHECK(go_on(recipe, output, {"model"}).what.empty());
  CHECK(output.say("changed since the checkpoint, by --allow-change: model.heads 2 (checkpoint 4)")
  );
  CHECK(output.say("changed since the checkpoint: train.iters 3 (checkpoint 4)"));
  CHECK(contains(runs::contents(folder / "a/log.txt"), "by --allow-change: model.heads 2"));
  CHECK(runs::contents(folder / "a/recipe.toml") == "resumed");
}

TEST_CASE("a tensor of the checkpoint that the model has no place for is named, whatever is allowed"
) {
  const runs::Folder folder;
  auto recipe = saved(folder);
  recipe.model.options = mh::Table{{"layers", 2}, {"hidden", 32}, {"heads", 4}};
  runs::Lines output;
  const Told told = go_on(recipe, output, {"model"});
  CHECK(contains(told.what, "the checkpoint of step 2 holds the tensor "));
  CHECK(contains(told.what, ", for which the model has no place"));
  recipe.model.options = mh::Table{{"layers", 3}, {"hidden", 16}, {"heads", 4}};
  CHECK(contains(go_on(recipe, output, {"model"}).what, " has shape ["));
}

TEST_CASE("state of another optimizer is left out by name where that is allowed") {
  const runs::Folder folder;
  auto recipe = saved(folder);
  recipe.optimizer.use = "sgd";
  runs::Lines output;
  CHECK(contains(go_on(recipe, output).what, "optimizer.use \"sgd\" (checkpoint \"adamw\")"));
  CHECK(go_on(recipe, output, {"optimizer"}).what.empty());
  CHECK(output.say("left out of the checkpoint, by --allow-change: optimizer.exp_avg."));
}

TEST_CASE("a run that is not there is not resumed, unless it may begin anew") {
  const runs::Folder folder;
  auto recipe = llama(folder / "typo");
  recipe.train.iters = 3;
  runs::Lines output;
  const Told told = go_on(recipe, output);
  CHECK(told.what == "there is no checkpoint in " + (folder / "typo").string() + " to resume from");
  CHECK(contains(told.hint, "--resume=auto begins a new run"));
  CHECK_FALSE(runs::fs::exists(folder / "typo"));
  CHECK(go_on(recipe, output, {}, mh::Resume::if_any).what.empty());
  CHECK(output.say("no checkpoint in " + (folder / "typo").string() + " yet: starting at step 0"));
  CHECK(go_on(recipe, output, {}, mh::Resume::if_any).what.empty());
  CHECK(output.say("resumed at step 3"));
}

TEST_CASE("data that moved are the same data, data that changed are not") {
  const runs::Folder folder;
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream stream(folder / name);
    for (int i = 0; i < 200; ++i) {
      stream << text << i << "\n";
    }
  };
  runs::fs::create_directory(folder / "moved");
  write("book.txt", "once upon a time ");
  write("moved/book.txt", "once upon a time ");
  auto recipe = llama(folder / "a");
  recipe.tokenizer = {"byte", mh::Table{}};
  recipe.data.use = "text";
  recipe.train.exit_iters = 2;
  const auto read = [&](const std::string& name) {
    recipe.data.options = mh::Table{{"paths", mh::Value::Array{(folder / name).string()}}};
  };
  read("book.txt");
  runs::Lines output;
  (void)runs::train(with_tree(recipe), output);
  recipe.train.exit_iters = 3;
  read("moved/book.txt");
  CHECK(go_on(recipe, output).what.empty());
  CHECK(output.say("changed since the checkpoint: data.paths "));
  recipe.train.exit_iters.reset();
  write("moved/book.txt", "a time upon once ");
  const Told told = go_on(recipe, output);
  CHECK(contains(told.what, ": its data are "));
  CHECK(contains(told.what, "though no key has changed"));
  CHECK(contains(told.hint, "--allow-change data"));
  CHECK(go_on(recipe, output, {"data"}).what.empty());
  CHECK(output.say("other data than the checkpoint's, by --allow-change: "));
}

TEST_CASE("a second run says where it is, first and last, and that a resume takes it") {
  const runs::Folder folder;
  auto recipe = llama(folder / "a");
  recipe.train.iters = 3;
  auto plugins = runs::host();
  runs::Lines output;
  const auto train = [&](mh::Resume resume) {
    output.lines.clear();
    (void)mh::train(recipe, plugins, {.resume = resume, .recipe_words = {"a.toml"}}, output);
  };
  train(mh::Resume::no);
  CHECK_FALSE(output.say("earlier run"));
  train(mh::Resume::no);
  const std::string first = (folder / "a").string(), second = first + "-2";
  const std::string note = first + " holds an earlier run: this one is kept in " + second +
                           ", and --resume takes the newest; --run-dir names another";
  CHECK(output.lines.front() == note);
  CHECK(std::count(output.lines.begin(), output.lines.end(), note) == 2);
  recipe.train.iters = 4;
  train(mh::Resume::yes);
  CHECK(contains(output.lines.front(), "this run goes on in " + second + ", the newest of those"));
}

TEST_CASE("the command that trains on keeps the learning rate where a longer schedule would not") {
  const runs::Folder folder;
  auto recipe = llama(folder / "a");
  recipe.train.iters = 8;
  auto plugins = runs::host();
  runs::Lines output;
  const auto end_of = [&](mh::Recipe::LrSchedule schedule, const char* name) {
    recipe.lr_schedule = std::move(schedule);
    recipe.checkpoint.dir = folder / name;
    output.lines.clear();
    (void)mh::train(recipe, plugins, {.recipe_words = {"a.toml"}}, output);
  };
  end_of({{"cosine", mh::Table{{"min_lr", 1e-3}}}}, "cosine");
  CHECK(output.say(
      " --resume --set train.iters=16 --set lr_schedule.on_resume=checkpoint   # train on, at the "
      "last learning rate, 1.00e-03; the longer schedule would begin at "
  ));
  end_of({{"cosine", mh::Table{}}}, "to nothing");
  CHECK(output.say(
      " --resume --set train.iters=16   # train on; the learning rate goes up from 0.00e+00 to "
  ));
  end_of({{"constant", mh::Table{}}}, "constant");
  CHECK(output.say(" --resume --set train.iters=16   # train on"));
  CHECK_FALSE(output.say("# train on;"));
  CHECK_FALSE(output.say("# train on,"));

  // It does what it says.
  end_of({{"cosine", mh::Table{{"min_lr", 1e-3}}}}, "again");
  recipe.train.iters = 10;
  recipe.lr_schedule.on_resume = "checkpoint";
  output.lines.clear();
  (void)mh::train(recipe, plugins, {.resume = mh::Resume::yes, .closing = false}, output);
  CHECK(output.say("| lr 1.00"));
}

TEST_CASE("what is written for show at the end never fails a run") {
  const runs::Folder folder;
  auto recipe = llama(folder / "a");
  recipe.train.iters = 3;
  recipe.tokenizer = {"byte", mh::Table{}};
  recipe.model.options = mh::Table{{"layers", 1}, {"hidden", 16}, {"heads", 2}, {"vocab", 3000}};
  auto plugins = runs::host();

  class NoChart : public runs::Lines {
  public:
    [[nodiscard]] std::string chart(const mh::LossCurves&) override {
      throw std::runtime_error("no room");
    }
  } output;

  const auto summary = mh::train(recipe, plugins, {.recipe_words = {"a.toml"}}, output);
  CHECK(summary.reason == "finished");
  CHECK(output.say("warning: the curve of the loss is left out: no room"));
  CHECK(output.say("warning: a sample of what the model writes is left out: "));
  CHECK(output.say("is no byte"));
  CHECK(output.say("   # measure it"));
}
