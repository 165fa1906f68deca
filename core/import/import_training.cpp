// The optimizer, its rates, the length of the run, the corpus.

#include "core/base/text.hpp"
#include "core/import/importer.hpp"

#include <algorithm>
#include <cstdlib>
#include <iterator>

namespace mh {

void Importer::optimizer() {
  const Value* use = result_.tree.find_path("optimizer.use");
  const std::string name = use != nullptr ? use->as_string() : "adamw";
  if (use == nullptr) {
    set("optimizer.use", name, kMegatronDefault);
  }
  if (name == "sgd") {
    set_from("optimizer.momentum", given_.number("sgd-momentum", 0.9), "sgd-momentum");
  } else if (name == "lion") {
    set_from(
        "optimizer.betas",
        Value::Array{given_.number("lion-beta1", 0.9), given_.number("lion-beta2", 0.99)},
        given_.has("lion-beta2") ? "lion-beta2" : "lion-beta1"
    );
  } else {
    set_from(
        "optimizer.betas",
        Value::Array{given_.number("adam-beta1", 0.9), given_.number("adam-beta2", 0.999)},
        given_.has("adam-beta2") ? "adam-beta2" : "adam-beta1"
    );
    set_from("optimizer.eps", given_.number("adam-eps", 1e-8), "adam-eps");
  }
  if (name == "muon") {
    set_from("optimizer.momentum", given_.number("muon-momentum", 0.9), "muon-momentum");
    set_from("optimizer.steps", given_.integer("muon-num-ns-steps", 5), "muon-num-ns-steps");
  }
  const bool grows = given_.has("end-weight-decay");
  const char* decay = grows ? "end-weight-decay" : "weight-decay";
  set_from("optimizer.weight_decay", given_.number(decay, 0.01), decay);
}

void Importer::schedule() {
  const std::string style = given_.text("lr-decay-style", "linear");
  const std::pair<const char*, const char*> styles[] = {
      {"constant", "constant"},
      {"linear", "linear"},
      {"cosine", "cosine"},
      {"inverse-square-root", "inverse_sqrt"},
      {"WSD", "wsd"}};
  const auto* found = std::find_if(std::begin(styles), std::end(styles), [&](const auto& pair) {
    return style == pair.first;
  });
  if (found == std::end(styles)) {
    refuse(
        "--lr-decay-style " + style +
        " is no style of Megatron-LM, expected constant, linear, cosine, inverse-square-root or "
        "WSD"
    );
  }
  set_from("lr_schedule.use", found->second, "lr-decay-style");
  const double lr = given_.number("lr", 0), min_lr = given_.number("min-lr", 0);
  if (given_.has("lr") && min_lr > lr) {
    refuse("--min-lr " + given_.text("min-lr") + " is above --lr " + given_.text("lr"));
  }
  if (style == "constant") {
    Table& table = result_.tree.as_table().find("lr_schedule")->as_table();
    for (const char* key : {"decay_iters", "decay_samples"}) {
      if (table.find(key) != nullptr) {
        comment(
            "--lr-" +
            std::string(key == std::string("decay_iters") ? "decay-iters" : "decay-samples") +
            ": a constant rate does not decay"
        );
        table.erase(key);
      }
    }
  } else {
    set_from("lr_schedule.min_lr", min_lr, "min-lr");
  }
  for (const char* unit : {"iters", "samples"}) {
    const std::string warmup = std::string("lr-warmup-") + unit,
                      decay = std::string("lr-decay-") + unit;
    if (given_.has(warmup) && given_.has(decay) &&
        given_.number(warmup, 0) >= given_.number(decay, 0)) {
      refuse(
          "--" + warmup + " " + given_.text(warmup) + " is not below --" + decay + " " +
          given_.text(decay)
      );
    }
  }
  if (given_.has("use-checkpoint-opt_param-scheduler")) {
    set("lr_schedule.on_resume", "checkpoint", "--use-checkpoint-opt_param-scheduler");
  } else if (given_.has("override-opt_param-scheduler")) {
    set("lr_schedule.on_resume", "recipe", "--override-opt_param-scheduler");
  }
}

void Importer::batch() {
  const int64_t micro = integer("batch.micro", 1), copies = integer("parallel.data", 0);
  const int64_t global = integer("batch.global", 0);
  if (global > 0 && copies > 0 && micro > 0 && global % (micro * copies) != 0) {
    refuse(
        "--global-batch-size " + std::to_string(global) +
        " is not divisible by --micro-batch-size " + std::to_string(micro) + " times " +
        std::to_string(copies) + " data-parallel ranks"
    );
  }
  const GivenArgument* ramp = given_.find("rampup-batch-size");
  if (ramp == nullptr) {
    return;
  }
  if (ramp->values.size() != 3) {
    refuse(ramp->text() + ", expected three numbers: start, increment, samples");
  }
  const char* keys[] = {"batch.rampup_start", "batch.rampup_increment", "batch.rampup_samples"};
  for (size_t i = 0; i < 3; ++i) {
    set(keys[i], number_value(argument_number(*ramp, ramp->values[i])), ramp->text());
  }
}

void Importer::evaluation() {
  constexpr const char* kNumber = ".0123456789";
  std::vector<double> shares{969, 30, 1};
  if (const GivenArgument* given = given_.find("split")) {
    shares.clear();
    const std::string& text = given->values.front(); // anything may stand between the numbers
    for (size_t end = 0, begin = 0; (begin = text.find_first_of(kNumber, end)) != text.npos;) {
      end = std::min(text.find_first_not_of(kNumber, begin), text.size());
      shares.push_back(argument_number(*given, text.substr(begin, end - begin)));
    }
    if (shares.empty() || shares.size() > 3) {
      refuse(given->text() + ", expected one to three numbers: train, validation, test");
    }
    shares.resize(3);
  }
  Value::Array values;
  for (const double share : shares) {
    values.push_back(number_value(share));
  }
  set_from("data.split", std::move(values), "split");
  const bool none = given_.integer("eval-iters", 100) == 0 || shares[1] == 0;
  if (none) {
    set("train.eval_interval",
        0,
        shares[1] == 0 ? "nothing of --split is for validation" : "--eval-iters 0");
    return;
  }
  set_from("train.eval_interval", given_.integer("eval-interval", 1000), "eval-interval");
  set_from("train.eval_iters", given_.integer("eval-iters", 100), "eval-iters");
}

namespace {

/// A blend as Megatron-LM understands it: prefixes, or weights and prefixes in turn.
struct GivenBlend {
  std::vector<std::string> prefixes;
  std::vector<double> weights;
};

GivenBlend blend_of(const GivenArgument& given) {
  std::vector<std::string> words = given.values;
  if (words.size() == 1) {
    words = parts_of(words.front(), ' ');
  }
  GivenBlend blend;
  size_t numbers = 0;
  for (size_t i = 0; i < words.size() && words.size() % 2 == 0; i += 2) {
    char* end = nullptr;
    const double number = std::strtod(words[i].c_str(), &end);
    if (end != words[i].c_str() && *end == '\0') {
      blend.weights.push_back(number);
      ++numbers;
    }
  }
  if (numbers != 0 && numbers != words.size() / 2) {
    throw Error(
        given.text() + " has weights before some of its corpora only", "give each a weight, or none"
    );
  }
  for (size_t i = numbers == 0 ? 0 : 1; i < words.size(); i += numbers == 0 ? 1 : 2) {
    blend.prefixes.push_back(words[i]);
  }
  return blend;
}

} // namespace

/// Blends of their own for train, validation and test.
void Importer::data_of_splits() {
  Value::Array sources;
  for (const char* split : {"train", "valid", "test"}) {
    const GivenArgument* given = given_.find(std::string(split) + "-data-path");
    const GivenBlend blend = given == nullptr ? GivenBlend{} : blend_of(*given);
    for (size_t i = 0; i < blend.prefixes.size(); ++i) {
      Table source{{"path", blend.prefixes[i]}, {"split", split}};
      if (!blend.weights.empty()) {
        source.set("weight", number_value(blend.weights[i]));
      }
      sources.emplace_back(std::move(source));
    }
  }
  set("data.sources", std::move(sources), "--train-data-path, --valid-data-path, --test-data-path");
}

void Importer::blended_data(const GivenArgument& paths) {
  const GivenBlend blend = blend_of(paths);
  Value::Array names, weights;
  for (const std::string& prefix : blend.prefixes) {
    names.emplace_back(prefix);
  }
  for (const double weight : blend.weights) {
    weights.push_back(number_value(weight));
  }
  set("data.paths", std::move(names), paths.label());
  if (!weights.empty()) {
    set("data.weights", std::move(weights), paths.label());
  }
}

void Importer::loader() {
  if (given_.has("dataloader-type")) {
    set_from("data.dataloader", given_.text("dataloader-type"), "dataloader-type");
  }
  if (given_.has("no-data-sharding")) {
    set("data.data_sharding", false, "--no-data-sharding");
  }
}

void Importer::data() {
  const GivenArgument* paths = given_.find("data-path");
  const bool apart = given_.has("train-data-path") || given_.has("valid-data-path") ||
                     given_.has("test-data-path");
  if (paths == nullptr && !apart) {
    set("data.use", "mock", given_.has("mock-data") ? "--mock-data" : "no --data-path: made up");
    return;
  }
  if (given_.has("object-storage-cache-path")) {
    set_from("data.cache", given_.text("object-storage-cache-path"), "object-storage-cache-path");
  }
  if (!decodes()) {
    if (paths == nullptr) {
      refuse(
          "corpora of their own for train, validation and test have no equivalent for encoders",
          "give --data-path and --split"
      );
    }
    masked_data(*paths);
    return;
  }
  set("data.use", "indexed", paths != nullptr ? paths->text() : "--train-data-path");
  set("data.order", "megatron", "the samples of Megatron-LM");
  if (paths != nullptr) {
    blended_data(*paths);
  } else {
    data_of_splits();
  }
  if (given_.has("data-cache-path")) {
    set_from("data.index_files", given_.text("data-cache-path"), "data-cache-path");
  }
  loader();
  if (given_.has("no-mmap-bin-files")) {
    set("data.mmap", false, "--no-mmap-bin-files");
  }
  const std::pair<const char*, const char*> flags[] = {
      {"reset-position-ids", "data.reset_positions"},
      {"reset-attention-mask", "data.reset_attention"},
      {"eod-mask-loss", "data.mask_eod_loss"},
      {"full-validation", "data.full_validation"},
      {"multiple-validation-sets", "data.validation_by_source"}};
  for (const auto& [flag, key] : flags) {
    if (given_.has(flag)) {
      set(key, true, std::string("--") + flag);
    }
  }
}

} // namespace mh
