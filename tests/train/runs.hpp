#pragma once
/// Small runs of the real trainer with the real plugins.

#include "core/session/built_in.hpp"
#include "core/train/train.hpp"
#include "megahost/corpus.hpp"
#include "megahost/error.hpp"
#include "megahost/host.hpp"
#include "megahost/recipe.hpp"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace runs {

namespace fs = std::filesystem;

class Lines : public mh::Output {
public:
  void line(const std::string& text) override { lines.push_back(text); }

  [[nodiscard]] bool say(const std::string& words) const {
    for (const auto& line : lines) {
      if (line.find(words) != std::string::npos) {
        return true;
      }
    }
    return false;
  }

  std::vector<std::string> lines;
};

/// A folder that goes with the object.
class Folder {
public:
  Folder()
      : path_(
            fs::temp_directory_path() / std::string("mh-runs-").append(std::to_string(getpid()))
        ) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }

  ~Folder() { fs::remove_all(path_); }

  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  [[nodiscard]] fs::path operator/(const std::string& name) const { return path_ / name; }

private:
  fs::path path_;
};

inline mh::Host host() {
  mh::Host host;
  mh::merge_built_in(host);
  return host;
}

/// The error of a plugin for options that it does not take.
template <class Base>
std::string refusal(
    mh::Host& host,
    const std::string& name,
    const mh::Table& options,
    const typename Base::Args& args = {}
) {
  try {
    (void)host.make<Base>(name, options, args);
  } catch (const mh::Error& error) {
    return error.what();
  }
  return "accepted";
}

/// Two layers with dropout on made-up tokens; 12 steps of 2 microbatches.
inline mh::Recipe recipe(const fs::path& folder) {
  mh::Recipe recipe;
  recipe.name = "tiny";
  recipe.model.use = "gpt";
  recipe.model.options = mh::Table{{"layers", 2}, {"hidden", 16}, {"heads", 2}, {"dropout", 0.1}};
  recipe.model.seq_length = 16;
  recipe.tokenizer = {"null", mh::Table{{"vocab", 20}}};
  recipe.data.use = "mock";
  recipe.data.split = {90, 10, 0};
  recipe.optimizer.use = "adamw";
  recipe.optimizer.lr = 1e-2;
  recipe.lr_schedule = {"cosine", mh::Table{{"warmup_iters", 2}}};
  recipe.batch.global = 4;
  recipe.batch.micro = 2;
  recipe.train.iters = 12;
  recipe.checkpoint.dir = folder.string();
  recipe.log.interval = 1;
  return recipe;
}

inline mh::TrainSummary train(const mh::Recipe& recipe, Lines& output, bool resume = false) {
  auto plugins = host();
  const auto how = resume ? mh::Resume::yes : mh::Resume::no;
  return mh::train(recipe, plugins, {.resume = how, .closing = false}, output);
}

inline std::string contents(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// The folder that counts for a step: one that is saved again gets another.
inline fs::path step_folder(const fs::path& run, int64_t step) {
  const std::string digits = std::to_string(int64_t{1'000'000'000'000} + step).substr(1);
  const fs::path first = run / "checkpoints" / std::string("step-").append(digits);
  const fs::path again = first.string() + ".2";
  return fs::exists(again) ? again : first;
}

/// The bytes of all tensors of a checkpoint: parameters and optimizer state.
inline std::string tensors(const fs::path& run, int64_t step) {
  std::string all;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(step_folder(run, step))) {
    if (entry.path().extension() == ".safetensors") {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  for (const auto& file : files) {
    all += contents(file);
  }
  return all;
}

/// The metrics without times.
inline std::vector<std::string> metrics(const fs::path& run) {
  std::vector<std::string> lines;
  std::ifstream stream(run / "metrics.jsonl");
  for (std::string line; std::getline(stream, line);) {
    // A step's seconds are followed by its other measurements; an evaluation has only its time.
    lines.push_back(line.substr(0, std::min(line.find(",\"seconds\""), line.find(",\"time\""))));
  }
  return lines;
}

} // namespace runs
