#include "runs.hpp"

#include <ATen/Parallel.h>

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <limits>

using runs::fs::path;

namespace {

class FileSizeLimit {
public:
  explicit FileSizeLimit(rlim_t bytes)
      : ignored_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &former_);
    const rlimit lower{bytes, former_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &lower);
  }

  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &former_);
    (void)std::signal(SIGXFSZ, ignored_);
  }

  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

private:
  rlimit former_{};
  void (*ignored_)(int);
};

} // namespace

TEST_CASE("a tiny model learns, in fp32 and in bf16, with each built-in model") {
  const runs::Folder folder;
  for (const std::string precision : {"fp32", "bf16"}) {
    for (const std::string model : {"gpt", "llama"}) {
      auto recipe = runs::recipe(folder / (model + precision));
      recipe.model.use = model;
      recipe.model.options = mh::Table{{"layers", 2}, {"hidden", 32}, {"heads", 2}};
      recipe.precision = precision;
      recipe.train.iters = 60;
      recipe.batch.global = 16;
      recipe.batch.micro = 8;
      recipe.train.eval_interval = 60;
      recipe.train.eval_iters = 2;
      runs::Lines output;
      const auto summary = runs::train(recipe, output);
      CAPTURE(model);
      CAPTURE(precision);
      CHECK(summary.step == 60);
      CHECK(summary.reason == "finished");
      REQUIRE(summary.loss.has_value());
      REQUIRE(summary.validation_loss.has_value());
      CHECK(*summary.loss < 2.2); // from ln 20 = 3.0, towards ln 4 = 1.4
      CHECK(*summary.validation_loss < 2.2);
      CHECK(output.say("padded vocab 20 -> 128 (108 dummy tokens)"));
    }
  }
}

TEST_CASE("resumed runs end with the bits of runs that never stopped") {
  const runs::Folder folder;
  const int threads = at::get_num_threads();
  for (const int count : {1, 2}) {
    at::set_num_threads(count);
    for (const std::string precision : {"fp32", "bf16"}) {
      const std::string name = precision + std::to_string(count);
      auto recipe = runs::recipe(folder / ("whole" + name));
      recipe.precision = precision;
      recipe.train.eval_interval = 4;
      recipe.train.eval_iters = 1;
      recipe.recompute.use = "full";
      runs::Lines output;
      (void)runs::train(recipe, output);
      const auto expected = runs::tensors(recipe.checkpoint.dir, 12);
      const auto expected_metrics = runs::metrics(recipe.checkpoint.dir);
      REQUIRE(expected.size() > 10000);

      recipe.recompute.use = "none"; // changes no bit
      recipe.checkpoint.dir = folder / ("parts" + name);
      recipe.checkpoint.interval = 5;
      recipe.train.exit_iters = 7;
      CHECK(runs::train(recipe, output).reason == "train.exit_iters");
      runs::fs::remove_all(runs::step_folder(recipe.checkpoint.dir, 7)
      ); // as if killed after step 5
      recipe.train.exit_iters.reset();
      runs::Lines resumed;
      CHECK(runs::train(recipe, resumed, /*resume=*/true).step == 12);
      CHECK(resumed.say("resumed at step 5"));
      CHECK(runs::tensors(recipe.checkpoint.dir, 12) == expected);
      CHECK(runs::metrics(recipe.checkpoint.dir) == expected_metrics);
    }
  }
  at::set_num_threads(threads);
}

TEST_CASE("the same recipe gives the same bits, another seed does not") {
  const runs::Folder folder;
  auto recipe = runs::recipe(folder / "a");
  runs::Lines output;
  (void)runs::train(recipe, output);
  (void)runs::train(recipe, output); // takes a-2
  CHECK(runs::tensors(folder / "a", 12) == runs::tensors(folder / "a-2", 12));
  recipe.train.seed = 5;
  recipe.checkpoint.dir = folder / "b";
  (void)runs::train(recipe, output);
  CHECK(runs::tensors(folder / "a", 12) != runs::tensors(folder / "b", 12));
}

TEST_CASE("a resumed run says what has changed") {
  const runs::Folder folder;
  auto recipe = runs::recipe(folder / "a");
  recipe.train.exit_iters = 3;
  recipe.tree = mh::Table{{"train", mh::Table{{"iters", 12}}}};
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  runs::Lines output;
  (void)runs::train(recipe, output);
  at::set_num_threads(2);
  recipe.train.exit_iters.reset();
  recipe.train.iters = 6;
  recipe.tree = mh::Table{{"train", mh::Table{{"iters", 6}}}};
  runs::Lines resumed;
  (void)runs::train(recipe, resumed, true);
  at::set_num_threads(threads);
  CHECK(resumed.say("changed since the checkpoint: train.iters 6 (checkpoint 12)"));
  CHECK(resumed.say("written with 1 threads, this run has 2"));
  runs::Lines again;
  CHECK(runs::train(recipe, again, true).step == 6);
  CHECK(again.say("this run is finished"));
}

namespace {

/// Tokens whose loss is no number from sample 16 on: the fifth step.
class Poisoned : public mh::Corpus {
public:
  struct Config {};

  static void fields(mh::Fields<Config>&) {}

  Poisoned(const Config&, const Args& args)
      : length_(static_cast<size_t>(args.seq_length)) {}

  [[nodiscard]] int64_t size(mh::Split) const override { return 100; }

  [[nodiscard]] mh::Sample sample(mh::Split split, int64_t index) const override {
    const bool poison = split == mh::Split::train && index >= 16;
    return {
        {"tokens", std::vector<int64_t>(length_, index % 7)},
        {"labels", std::vector<int64_t>(length_, 1)},
        {"loss_mask",
         std::vector<float>(length_, poison ? std::numeric_limits<float>::quiet_NaN() : 1.0F)}};
  }

  [[nodiscard]] std::string summary() const override { return "poisoned"; }

private:
  size_t length_;
};

} // namespace

TEST_CASE("a loss that is no number stops the run before it reaches a weight") {
  const runs::Folder folder;
  auto plugins = runs::host();
  mh::Registry registry(mh::PluginInfo{"org.example.poison", "1", "", "", "", "", {}});
  registry.add<Poisoned>("poisoned", "tokens whose loss is no number");
  plugins.registry().merge(std::move(registry));
  auto recipe = runs::recipe(folder / "sound");
  recipe.data.use = "poisoned";
  recipe.train.exit_iters = 4;
  runs::Lines output;
  (void)mh::train(recipe, plugins, {.closing = false}, output);

  recipe.train.exit_iters.reset();
  recipe.checkpoint.dir = folder / "poisoned";
  recipe.checkpoint.interval = 1;
  recipe.checkpoint.keep = 1;
  for (const mh::Resume resume : {mh::Resume::no, mh::Resume::yes}) {
    try {
      (void)mh::train(recipe, plugins, {.resume = resume, .closing = false}, output);
      FAIL("no error");
    } catch (const mh::Error& error) {
      CHECK(error.exit_code() == mh::exit_code::numbers);
      CHECK(std::string(error.what()).find("step 5: the lm loss is ") == 0);
    }
    CHECK(runs::tensors(recipe.checkpoint.dir, 4) == runs::tensors(folder / "sound", 4));
  }
}

TEST_CASE("weights that explode stop the run, and earlier checkpoints stay") {
  const runs::Folder folder;
  auto recipe = runs::recipe(folder / "a");
  recipe.optimizer.use = "sgd";
  recipe.optimizer.lr = 1e25;
  recipe.optimizer.clip_grad = 0;
  recipe.lr_schedule = {"constant", mh::Table{}};
  runs::Lines output;
  CHECK_THROWS_AS((void)runs::train(recipe, output), mh::Error);
  CHECK(output.say("stopped at step "));
}

TEST_CASE("a checkpoint that cannot be written does not end the run before its end") {
  const runs::Folder folder;
  auto recipe = runs::recipe(folder / "a");
  recipe.checkpoint.interval = 4;
  runs::fs::create_directories(folder / "a");
  std::ofstream(folder / "a/checkpoints") << "in the way";
  runs::Lines output;
  try {
    (void)runs::train(recipe, output);
    FAIL("no error");
  } catch (const mh::Error& error) {
    CHECK(std::string(error.what()).find((folder / "a/checkpoints").string()) != std::string::npos);
  }
  CHECK(output.say("warning: the checkpoint of step 4 was not written"));
  CHECK(output.say("step     12/12"));
}

TEST_CASE("a full disk while saving loses nothing") {
  const runs::Folder folder;
  auto recipe = runs::recipe(folder / "whole");
  runs::Lines output;
  (void)runs::train(recipe, output);
  recipe.checkpoint.dir = folder / "full";
  recipe.checkpoint.interval = 4;
  recipe.train.exit_iters = 4;
  (void)runs::train(recipe, output);
  recipe.train.exit_iters.reset();
  runs::Lines full;
  {
    // No file may grow beyond 50 kB: writes fail as they do on a full disk.
    const FileSizeLimit limit(50'000);
    CHECK_THROWS_AS((void)runs::train(recipe, full, /*resume=*/true), mh::Error);
  }
  CHECK(full.say("warning: the checkpoint of step 8 was not written, earlier ones are untouched"));
  runs::Lines resumed;
  (void)runs::train(recipe, resumed, /*resume=*/true);
  CHECK(resumed.say("resumed at step 4"));
  CHECK(runs::tensors(folder / "full", 12) == runs::tensors(folder / "whole", 12));
}

TEST_CASE("SIGTERM saves and stops; the rest of the run is the same") {
  const runs::Folder folder;
  auto recipe = runs::recipe(folder / "whole");
  runs::Lines output;
  (void)runs::train(recipe, output);
  recipe.checkpoint.dir = folder / "stopped";

  class Impatient : public runs::Lines {
  public:
    void progress(double done, const std::string&) override {
      if (done > 0.4 && !sent) {
        sent = true;
        std::raise(SIGTERM);
      }
    }

    bool sent = false;
  } impatient;

  const auto stopped = runs::train(recipe, impatient);
  CHECK(stopped.reason == "SIGTERM");
  CHECK(stopped.step == 5);
  (void)runs::train(recipe, output, true);
  CHECK(runs::tensors(folder / "whole", 12) == runs::tensors(folder / "stopped", 12));
}

TEST_CASE("two runs do not write to one folder at a time") {
  const runs::Folder folder;
  const auto recipe = runs::recipe(folder / "a");

  class Nosy : public runs::Lines {
  public:
    explicit Nosy(const mh::Recipe& recipe)
        : recipe_(recipe) {}

    void progress(double, const std::string&) override {
      if (refusal.empty()) {
        runs::Lines other;
        try {
          (void)runs::train(recipe_, other, /*resume=*/true);
          refusal = "accepted";
        } catch (const mh::Error& error) {
          refusal = error.what();
        }
      }
    }

    std::string refusal;

  private:
    const mh::Recipe& recipe_;
  } output(recipe);

  (void)runs::train(recipe, output);
  CHECK(output.refusal.find("another run is writing to this folder") != std::string::npos);
}

TEST_CASE("a run ends on time") {
  const runs::Folder folder;
  auto recipe = runs::recipe(folder / "a");
  recipe.train.iters = 1000000;
  recipe.train.exit_minutes = 0.005;
  runs::Lines output;
  const auto summary = runs::train(recipe, output);
  CHECK(summary.reason == "train.exit_minutes");
  CHECK(summary.step > 0);
  CHECK(runs::tensors(folder / "a", summary.step).size() > 10000);
}

TEST_CASE("bad input is named before training") {
  const runs::Folder folder;
  const auto fails = [&](const mh::Recipe& recipe, int code, const std::string& words) {
    runs::Lines output;
    try {
      (void)runs::train(recipe, output);
      FAIL("no error");
    } catch (const mh::Error& error) {
      CHECK(error.exit_code() == code);
      CAPTURE(std::string(error.what()));
      CHECK(std::string(error.what()).find(words) != std::string::npos);
    }
    CHECK_FALSE(runs::fs::exists(recipe.checkpoint.dir));
  };
  auto recipe = runs::recipe(folder / "a");
  recipe.train.eval_interval = 2;
  recipe.data.split = {1, 0, 0};
  fails(recipe, mh::exit_code::data, "the validation split holds no sample");

  recipe = runs::recipe(folder / "a");
  recipe.batch.micro = 3;
  fails(recipe, mh::exit_code::recipe, "batch.global 4 is not divisible by batch.micro 3");

  recipe = runs::recipe(folder / "a");
  recipe.parallel.data = int64_t{2};
  fails(recipe, mh::exit_code::recipe, "this layout needs 2 ranks, this run has 1");

  recipe = runs::recipe(folder / "a");
  std::ofstream(folder / "empty.txt");
  recipe.tokenizer = {"byte", mh::Table{}};
  recipe.data.use = "text";
  recipe.data.options = mh::Table{{"paths", mh::Value::Array{(folder / "empty.txt").string()}}};
  fails(recipe, mh::exit_code::data, "the corpus is empty");

  std::ofstream(folder / "short.txt") << "too short";
  recipe.data.options = mh::Table{{"paths", mh::Value::Array{(folder / "short.txt").string()}}};
  fails(recipe, mh::exit_code::data, "17");

  recipe = runs::recipe(folder / "a");
  std::ofstream(folder / "file") << "not a folder";
  recipe.checkpoint.dir = folder / "file/run";
  fails(recipe, mh::exit_code::data, "cannot make the run folder");
}

TEST_CASE("a damaged newest checkpoint is passed over with a sentence") {
  const runs::Folder folder;
  auto recipe = runs::recipe(folder / "a");
  recipe.checkpoint.interval = 4;
  runs::Lines output;
  (void)runs::train(recipe, output);
  const auto expected = runs::tensors(folder / "a", 12);
  for (const auto& entry : runs::fs::directory_iterator(runs::step_folder(folder / "a", 12))) {
    if (entry.path().extension() == ".safetensors") {
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(-9, std::ios::end);
      const char byte = static_cast<char>(file.get() ^ 1);
      file.seekp(-9, std::ios::end);
      file.put(byte);
    }
  }
  CHECK(runs::tensors(folder / "a", 12) != expected);
  runs::Lines resumed;
  (void)runs::train(recipe, resumed, true);
  CHECK(resumed.say("resumed at step 8"));
  CHECK(resumed.say("warning: "));
  CHECK(runs::tensors(folder / "a", 12) == expected);
}

TEST_CASE("the end of a run: a sample, and what to try next") {
  const runs::Folder folder;
  const auto recipe = runs::recipe(folder / "a");
  auto plugins = runs::host();
  runs::Lines output;
  (void)mh::train(
      recipe, plugins, {.recipe_text = "name = \"tiny\"\n", .recipe_words = {"tiny.toml"}}, output
  );
  CHECK(output.say("what the model writes after "));
  CHECK(output.say("megahost run tiny.toml --resume --set train.iters=24"));
  CHECK(output.say("megahost eval tiny.toml --weights " + (folder / "a").string()));
  CHECK(runs::contents(folder / "a/recipe.toml") == "name = \"tiny\"\n");
  CHECK(runs::contents(folder / "a/log.txt").find("megahost eval") != std::string::npos);
}

TEST_CASE("losses of later tokens stand in the log and in the metrics") {
  const runs::Folder folder;
  auto recipe = runs::recipe(folder / "a");
  recipe.model.options.as_table().set("mtp_layers", 2);
  runs::Lines output;
  (void)runs::train(recipe, output);
  CHECK(output.say("| mtp_1 loss "));
  CHECK(output.say("| mtp_2 loss "));
  const std::string metrics = runs::contents(folder / "a/metrics.jsonl");
  CHECK(metrics.find("\"mtp_1 loss\"") != std::string::npos);
  CHECK(metrics.find("\"mtp_2 loss\"") != std::string::npos);
}

TEST_CASE("where there is no validation split, the command to measure a run names another") {
  const runs::Folder folder;
  auto recipe = runs::recipe(folder / "a");
  recipe.data.split = {1, 0, 0};
  recipe.train.eval_interval = 0;
  auto plugins = runs::host();
  runs::Lines output;
  (void)mh::train(recipe, plugins, {.recipe_words = {"tiny.toml"}}, output);
  CHECK(output.say("--weights " + (folder / "a").string() + " --split train   # measure it"));
}
