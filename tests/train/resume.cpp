// The tensors that a resumed run takes of a checkpoint, its refusals, and its messages.

#include "runs.hpp"
#include "store.hpp"

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

/// A run in a folder of its own.
struct SmallRun {
  runs::Folder folder;
  mh::Recipe recipe = llama(folder / "a");
  mh::Host plugins = runs::host();
  runs::Lines output;

  /// Leaves a checkpoint of two steps.
  void begin() {
    recipe.train.exit_iters = 2;
    runs::Lines unread;
    (void)runs::train(with_tree(recipe), unread);
    recipe.train.exit_iters.reset();
  }

  /// Trains another run in the folder, whose lines `output` keeps.
  void train(mh::Resume resume = mh::Resume::no, bool closing = true) {
    output.lines.clear();
    (void)mh::train(
        recipe, plugins, {.resume = resume, .closing = closing, .recipe_words = {"a.toml"}}, output
    );
  }
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

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

} // namespace

TEST_CASE_FIXTURE(
    SmallRun,
    "a checkpoint of another model is refused with each key, and its folder stays as it was"
) {
  begin();
  const std::string before = runs::contents(folder / "a/recipe.toml");
  auto other = recipe;
  other.model.options =
      mh::Table{{"layers", 2}, {"hidden", 32}, {"heads", 2}, {"rope_base", 2e4}, {"kv_heads", 1}};
  other.train.seed = 7;
  const Told told = go_on(other, output);
  const std::string run = (folder / "a").string();
  CHECK(
      told.what == "the checkpoint of step 2 in " + run +
                       " is of another recipe: model.layers 2 (checkpoint 3), model.heads 2 "
                       "(checkpoint 4), model.rope_base 20000.0 (checkpoint not set), "
                       "model.kv_heads 1 (checkpoint not set), train.seed 7 (checkpoint 1234)"
  );
  CHECK(
      told.hint == "resume with the checkpoint's values: its tensors do not fit this model "
                   "(layers.0.attention.k.weight)" // so neither --allow-change nor --weights helps
  );
  CHECK(runs::contents(folder / "a/recipe.toml") == before);
  CHECK_FALSE(runs::fs::exists(runs::step_folder(folder / "a", 4)));
}

TEST_CASE_FIXTURE(SmallRun, "a resumed run removes what a killed one has half removed") {
  begin();
  (void)go_on(recipe, output);
  const auto half = runs::step_folder(folder / "a", 1);
  runs::fs::create_directories(half);
  std::ofstream(half / "rank-0.safetensors") << "rest";
  CHECK(go_on(recipe, output).what.empty()); // which has nothing to save
  CHECK_FALSE(runs::fs::exists(half));
}

TEST_CASE_FIXTURE(
    SmallRun, "--allow-change goes on and says so in the log; what may change needs no word"
) {
  begin();
  recipe.model.options = mh::Table{{"layers", 3}, {"hidden", 32}, {"heads", 2}};
  recipe.train.iters = 3;
  CHECK(contains(go_on(recipe, output, {"model.layers"}).what, ": model.heads 2 (checkpoint 4)"));
  CHECK(go_on(recipe, output, {"model"}).what.empty());
  CHECK(output.say("changed since the checkpoint, by --allow-change: model.heads 2 (checkpoint 4)")
  );
  CHECK(output.say("changed since the checkpoint: train.iters 3 (checkpoint 4)"));
  CHECK(contains(runs::contents(folder / "a/log.txt"), "by --allow-change: model.heads 2"));
  CHECK(runs::contents(folder / "a/recipe.toml") == "resumed");
}

TEST_CASE_FIXTURE(SmallRun, "the tokenizer's own size of the vocabulary needs no word") {
  begin();
  auto plugins = runs::host();
  const int64_t vocab = plugins.make<mh::Tokenizer>(recipe.tokenizer)->vocab();
  mh::Table model{{"layers", 3}, {"hidden", 32}, {"heads", 4}};
  model.set("vocab", vocab + 8);
  recipe.model.options = model;
  CHECK(contains(go_on(recipe, output).what, "model.vocab "));
  model.set("vocab", vocab);
  recipe.model.options = model;
  CHECK(go_on(recipe, output).what.empty());
}

TEST_CASE_FIXTURE(SmallRun, "a longer run whose rates stay as they are is told nothing of them") {
  recipe.lr_schedule = {"constant", mh::Table{}};
  begin();
  recipe.train.iters = 5;
  CHECK(go_on(recipe, output).what.empty());
  CHECK_FALSE(output.say("learning rate and weight decay go on"));
  CHECK(output.say("resumed at step 2"));
}

TEST_CASE_FIXTURE(
    SmallRun,
    "a tensor of the checkpoint that the model has no place for is named, whatever is allowed"
) {
  begin();
  recipe.model.options = mh::Table{{"layers", 2}, {"hidden", 32}, {"heads", 4}};
  const Told told = go_on(recipe, output, {"model"});
  CHECK(contains(told.what, "the checkpoint of step 2 holds the tensor "));
  CHECK(contains(told.what, ", for which the model has no place"));
  recipe.model.options = mh::Table{{"layers", 3}, {"hidden", 16}, {"heads", 4}};
  CHECK(contains(go_on(recipe, output, {"model"}).what, " has shape ["));
}

TEST_CASE_FIXTURE(
    SmallRun, "state of another optimizer is left out by name where that is allowed"
) {
  begin();
  recipe.optimizer.use = "sgd";
  const Told told = go_on(recipe, output);
  const std::string run = (folder / "a").string();
  CHECK(contains(told.what, "optimizer.use \"sgd\" (checkpoint \"adamw\")"));
  CHECK(
      told.hint == "resume with the checkpoint's values, begin a new run with --weights " + run +
                       ", or say that you mean it: --allow-change optimizer.use"
  );
  CHECK(go_on(recipe, output, {"optimizer"}).what.empty());
  CHECK(output.say("left out of the checkpoint, by --allow-change: optimizer.exp_avg."));
  recipe.optimizer.use = "adamw"; // whose state the newest checkpoint lacks
  CHECK(
      go_on(recipe, output).hint ==
      "resume with the checkpoint's values, or begin a new run with --weights " + run +
          ": it lacks state that this run needs (optimizer.exp_avg.embedding.word.weight)"
  );
}

TEST_CASE_FIXTURE(SmallRun, "a run that is not there is not resumed, unless it may begin anew") {
  recipe.checkpoint.dir = folder / "typo";
  recipe.train.iters = 3;
  const Told told = go_on(recipe, output);
  CHECK(told.what == "there is no checkpoint in " + (folder / "typo").string() + " to resume from");
  CHECK(contains(told.hint, "--resume=auto begins a new run"));
  CHECK_FALSE(runs::fs::exists(folder / "typo"));
  CHECK(go_on(recipe, output, {}, mh::Resume::if_any).what.empty());
  CHECK(output.say("no checkpoint in " + (folder / "typo").string() + " yet: starting at step 0"));
  CHECK(go_on(recipe, output, {}, mh::Resume::if_any).what.empty());
  CHECK(output.say("resumed at step 3"));
}

TEST_CASE_FIXTURE(SmallRun, "data that moved are the same data, data that changed are not") {
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream stream(folder / name);
    for (int i = 0; i < 200; ++i) {
      stream << text << i << "\n";
    }
  };
  runs::fs::create_directory(folder / "moved");
  write("book.txt", "once upon a time ");
  write("moved/book.txt", "once upon a time ");
  recipe.tokenizer = {"byte", mh::Table{}};
  recipe.data.use = "text";
  recipe.train.exit_iters = 2;
  const auto read = [&](const std::string& name) {
    recipe.data.options = mh::Table{{"paths", mh::Value::Array{(folder / name).string()}}};
  };
  read("book.txt");
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

TEST_CASE_FIXTURE(
    SmallRun, "a second run says where it is, first and last, and that a resume takes it"
) {
  recipe.train.iters = 3;
  train();
  CHECK_FALSE(output.say("earlier run"));
  train();
  const std::string first = (folder / "a").string(), second = first + "-2";
  const std::string note =
      first + " holds an earlier run: this one is kept in " + second +
      ", and --resume takes the last that was started; --run-dir names another";
  CHECK(output.lines.front() == note);
  CHECK(std::count(output.lines.begin(), output.lines.end(), note) == 2);
  recipe.train.iters = 4;
  train(mh::Resume::yes);
  CHECK(contains(
      output.lines.front(), "this run goes on in " + second + ", the last that was started of those"
  ));
}

TEST_CASE_FIXTURE(
    SmallRun, "the command that trains on keeps the learning rate where a longer schedule would not"
) {
  recipe.train.iters = 8;
  const auto end_of = [&](mh::Recipe::LrSchedule schedule, const char* name) {
    recipe.lr_schedule = std::move(schedule);
    recipe.checkpoint.dir = folder / name;
    train();
  };
  end_of({{"cosine", mh::Table{{"min_lr", 1e-3}}}}, "cosine");
  CHECK(output.say(
      " --resume --set train.iters=16 --set lr_schedule.on_resume=checkpoint   # train on, at a "
      "learning rate of 1.00e-03; the longer schedule would begin at "
  ));
  end_of({{"cosine", mh::Table{}}}, "to nothing");
  CHECK(output.say(" --resume --set train.iters=16   # train on; the learning rate goes up from "));
  CHECK_FALSE(output.say("goes up from 0.00e+00")); // the last step had another
  end_of({{"wsd", mh::Table{}}}, "at once");
  CHECK_FALSE(output.say("# train on;"));
  end_of({{"wsd", mh::Table{{"cooldown_iters", 4}, {"min_lr", 1e-12}}}}, "to almost nothing");
  CHECK_FALSE(output.say("lr_schedule.on_resume=checkpoint"));
  end_of({{"constant", mh::Table{}}}, "constant");
  CHECK(output.say(" --resume --set train.iters=16   # train on"));
  CHECK_FALSE(output.say("# train on;"));
  CHECK_FALSE(output.say("# train on,"));

  // It does what it says.
  end_of({{"cosine", mh::Table{{"min_lr", 1e-3}}}}, "again");
  recipe.train.iters = 10;
  recipe.lr_schedule.on_resume = "checkpoint";
  train(mh::Resume::yes, /*closing=*/false);
  CHECK(output.say("| lr 1.00"));
}

TEST_CASE_FIXTURE(SmallRun, "what is written for show at the end never fails a run") {
  recipe.train.iters = 3;
  recipe.tokenizer = {"byte", mh::Table{}};
  recipe.model.options = mh::Table{{"layers", 1}, {"hidden", 16}, {"heads", 2}, {"vocab", 3000}};

  class NoChart : public runs::Lines {
  public:
    [[nodiscard]] std::string chart(const mh::LossCurves&) override {
      throw std::runtime_error("no room");
    }
  } no_chart;

  const auto summary = mh::train(recipe, plugins, {.recipe_words = {"a.toml"}}, no_chart);
  CHECK(summary.reason == "finished");
  CHECK(no_chart.say("warning: the curve of the loss is left out: no room"));
  CHECK(no_chart.say("warning: a sample of what the model writes is left out: "));
  CHECK(no_chart.say("is no byte"));
  CHECK(no_chart.say("   # measure it"));
}

TEST_CASE("a run is saved in the host's storage, and a resume reads each byte once") {
  const runs::Folder folder;
  mh::Recipe recipe = llama(folder / "a");
  runs::Store store;
  mh::Host plugins = runs::host();
  plugins.set_storage(store);
  runs::Lines output;
  recipe.train.exit_iters = 2;
  (void)mh::train(with_tree(recipe), plugins, {.closing = false}, output);
  CHECK_FALSE(runs::fs::exists(folder / "a" / "checkpoints"));
  uint64_t bytes = 0;
  for (const auto& [name, text] : store.objects) {
    const bool in_step = name.find("/checkpoints/step-000000000002/") != std::string::npos;
    bytes += in_step ? text.size() : 0;
    bytes += name.ends_with(".safetensors") ? 8 : 0; // the header's length is in the header, too
  }
  CHECK(bytes > 10000);
  recipe.train.exit_iters.reset();
  recipe.train.iters = 4;
  store.bytes_read = 0;
  const auto how = mh::Resume::yes;
  (void)mh::train(with_tree(recipe), plugins, {.resume = how, .closing = false}, output);
  CHECK(output.say("resumed at step 2"));
  CHECK(store.bytes_read == bytes);

  recipe.checkpoint.dir = (folder / "whole").string();
  (void)runs::train(with_tree(recipe), output);
  const auto shard = [](int64_t step) {
    return runs::step_folder("", step) / "shard-00001-model-00001-of-00001.safetensors";
  };
  const auto whole = folder / "whole" / shard(4).string();
  CHECK(store.objects[(folder / "a" / shard(4).string()).string()] == runs::contents(whole));
}

TEST_CASE("checkpoints lie in the storage, the run's own files in its folder") {
  const runs::Folder folder;
  mh::Recipe recipe = llama("");
  recipe.run_dir = (folder / "run").string();
  recipe.checkpoint.dir = "bucket/run"; // in the store, on no disk
  runs::Store store;
  mh::Host plugins = runs::host();
  plugins.set_storage(store);
  runs::Lines output;
  const auto train = [&](mh::Resume resume, bool closing = false) {
    output.lines.clear();
    return mh::train(
        with_tree(recipe),
        plugins,
        {.resume = resume, .closing = closing, .recipe_text = "text", .recipe_words = {"a.toml"}},
        output
    );
  };
  const auto files = [](const runs::fs::path& of) {
    std::vector<std::string> names;
    for (const auto& item : runs::fs::directory_iterator(of)) {
      names.push_back(item.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  };
  const std::vector<std::string> own{
      ".lock", "journal.jsonl", "log.txt", "metrics.jsonl", "recipe.toml", "tensorboard"};
  recipe.train.exit_iters = 2;
  CHECK(train(mh::Resume::no).folder == folder / "run");
  CHECK(output.say("saved in bucket/run/checkpoints"));
  CHECK(files(folder / "run") == own);
  CHECK_FALSE(runs::fs::exists("bucket"));
  CHECK_FALSE(store.objects.empty());
  for (const auto& [name, text] : store.objects) {
    CHECK(name.starts_with("bucket/run/checkpoints/"));
  }

  recipe.train.exit_iters.reset();
  (void)train(mh::Resume::yes, /*closing=*/true);
  CHECK(output.say("resumed at step 2"));
  CHECK(output.say("tensorboard); checkpoints in bucket/run"));
  CHECK(output.say("--weights bucket/run   # measure it"));

  // On another machine, which has the store and not the folder.
  runs::fs::remove_all(folder / "run");
  recipe.train.iters = 5;
  (void)train(mh::Resume::yes);
  CHECK(output.say("resumed at step 4"));
  CHECK(files(folder / "run") == own);

  // A second run gets places of the same number, with the command that finds them.
  CHECK(train(mh::Resume::no, /*closing=*/true).folder == folder / "run-2");
  CHECK(output.say("checkpoints in bucket/run-2"));
  CHECK(output.say(
      " --set run_dir=" + (folder / "run-2").string() + " --set checkpoint.dir=bucket/run-2"
  ));

  // Checkpoints of a run that is not this one are neither gone on from nor removed.
  recipe.run_dir = (folder / "other").string();
  const auto objects = store.objects;
  try {
    (void)train(mh::Resume::no);
    FAIL("it was taken");
  } catch (const mh::Error& error) {
    CHECK(
        std::string(error.what()) ==
        "checkpoint.dir bucket/run holds the checkpoints of another run"
    );
    CHECK(error.exit_code() == mh::exit_code::data);
  }
  CHECK(store.objects == objects);
}
