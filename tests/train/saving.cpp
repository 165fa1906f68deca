// Saves while the run goes on: nothing that it computes changes, and a storage that fails ends no
// run.

#include "runs.hpp"
#include "store.hpp"

#include <doctest/doctest.h>

#include <cerrno>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <set>
#include <utility>

namespace {

/// A store whose writes fail or wait as a test says.
class Moody final : public mh::Storage {
public:
  runs::Store store;

  /// From now on writes fail, or do not.
  void fail(bool fails) { set(fails_, fails); }

  /// From now on writes wait, or go on.
  void hold(bool holds) { set(holds_, holds); }

  std::unique_ptr<mh::Upload> put(const mh::Path& path, Existing existing) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !holds_; });
    if (fails_) {
      throw mh::StorageError("write", path, EIO);
    }
    return store.put(path, existing);
  }

  std::unique_ptr<mh::ReadFile> get(const mh::Path& path) override { return store.get(path); }

  bool contains(const mh::Path& path) override { return store.contains(path); }

  std::vector<Item> list(const mh::Path& prefix) override { return store.list(prefix); }

  void remove(const mh::Path& path) override { store.remove(path); }

  void remove_all(const mh::Path& prefix) override { store.remove_all(prefix); }

  void remove_unfinished(const mh::Path& prefix) override { store.remove_unfinished(prefix); }

private:
  void set(bool& flag, bool value) {
    const std::scoped_lock lock(mutex_);
    flag = value;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool fails_ = false, holds_ = false;
};

/// Acts when a line has certain words.
class Watcher final : public runs::Lines {
public:
  std::vector<std::pair<std::string, std::function<void()>>> at;

  void line(const std::string& text) override {
    Lines::line(text);
    for (const auto& [words, action] : at) {
      if (text.find(words) != std::string::npos) {
        action();
      }
    }
  }
};

std::set<std::string> steps_in(const Moody& storage) {
  std::set<std::string> steps;
  for (const auto& [name, text] : storage.store.objects) {
    if (name.ends_with("megahost.manifest.json")) {
      steps.insert(runs::fs::path(name).parent_path().filename());
    }
  }
  return steps;
}

std::string step_name(int64_t step) {
  return runs::step_folder("", step).filename();
}

struct Saving {
  runs::Folder folder;
  mh::Recipe recipe = runs::recipe(folder / "a");
  Moody storage;
  Watcher output;

  void train(mh::Resume resume = mh::Resume::no) {
    mh::Host plugins = runs::host();
    plugins.set_storage(storage);
    (void)mh::train(recipe, plugins, {.resume = resume, .closing = false}, output);
  }
};

} // namespace

TEST_CASE("saves in the background leave the bits of losses, weights and checkpoints as they are") {
  const runs::Folder folder;
  auto recipe = runs::recipe(folder / "none");
  runs::Lines output;
  (void)runs::train(recipe, output);
  recipe.checkpoint.interval = 1;
  for (const bool async : {false, true}) {
    recipe.checkpoint.dir = folder / (async ? "background" : "blocking");
    recipe.checkpoint.async = async;
    runs::Lines lines;
    (void)runs::train(recipe, lines);
    CHECK(lines.say(" in the background") == async);
    CHECK(lines.say("of host memory for its copy") == async);
    CHECK(runs::metrics(recipe.checkpoint.dir) == runs::metrics(folder / "none"));
    CHECK(runs::tensors(recipe.checkpoint.dir, 12) == runs::tensors(folder / "none", 12));
  }
  for (int64_t step = 1; step < 12; ++step) {
    CHECK(runs::tensors(folder / "background", step) == runs::tensors(folder / "blocking", step));
  }
}

TEST_CASE_FIXTURE(
    Saving, "a disk that fails for some steps is told of, and the run saves again when it is back"
) {
  recipe.checkpoint.interval = 2;
  output.at = {
      {"step      2/12 | saved in", [this] { storage.fail(true); }},
      {"the checkpoint of step 6 was not written", [this] { storage.fail(false); }}};
  train();
  for (const int64_t step : {4, 6}) {
    const std::string warning = "warning: the checkpoint of step " + std::to_string(step) +
                                " was not written, earlier ones are untouched: cannot write ";
    CHECK(output.say(warning));
  }
  CHECK(steps_in(storage) == std::set{step_name(2), step_name(8), step_name(10), step_name(12)});
  for (const auto& [name, text] : storage.store.objects) { // nothing is left of those that failed
    CHECK(name.find(step_name(4)) == std::string::npos);
    CHECK(name.find(step_name(6)) == std::string::npos);
  }

  // The last save blocks and is not told but thrown: what it would have kept is lost.
  recipe.train.iters = 14;
  output.at.clear();
  storage.fail(true);
  CHECK_THROWS_AS(train(mh::Resume::yes), mh::Error);
  CHECK(output.say("resumed at step 12"));
  storage.fail(false);
  train(mh::Resume::yes);
  CHECK(steps_in(storage).contains(step_name(14)));
}

TEST_CASE_FIXTURE(Saving, "a save is skipped while the one before is being written") {
  recipe.checkpoint.interval = 1;
  recipe.checkpoint.if_busy = "skip";
  output.at = {
      {"step      1/12 | lm loss", [this] { storage.hold(true); }},
      {"step      6/12 | lm loss", [this] { storage.hold(false); }}};
  train();
  CHECK(output.say("step 2 is not saved: the checkpoint before is still being written"));
  CHECK(output.say("step 5 is not saved"));
  const auto steps = steps_in(storage);
  CHECK(steps.contains(step_name(1)));
  CHECK(steps.contains(step_name(12)));
  for (const int64_t step : {2, 3, 4, 5}) {
    CHECK_FALSE(steps.contains(step_name(step)));
  }
}

TEST_CASE_FIXTURE(Saving, "the newest checkpoints stay, and those of every so many steps") {
  recipe.checkpoint.interval = 2;
  recipe.checkpoint.keep = 1;
  recipe.checkpoint.keep_every = 4;
  for (const bool async : {true, false}) {
    storage.store.objects.clear();
    recipe.checkpoint.async = async;
    recipe.checkpoint.dir = (folder / (async ? "async" : "blocking")).string();
    recipe.train.iters = 14;
    train();
    CHECK(steps_in(storage) == std::set{step_name(4), step_name(8), step_name(12), step_name(14)});
  }
}
