// The optimizer, its rates, the length of the run, the corpus.

#include "core/base/text.hpp"
#include "core/import/importer.hpp"

#include <algorithm>
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
  std::vector<double> shares{969, 30, 1};
  if (const GivenArgument* given = given_.find("split")) {
    shares.clear();
    for (const std::string& share : parts_of(given->values.front(), ',')) {
      shares.push_back(argument_number(*given, share));
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

void Importer::data() {
  const GivenArgument* paths = given_.find("data-path");
  if (paths == nullptr) {
    set("data.use", "mock", given_.has("mock-data") ? "--mock-data" : "no --data-path: made up");
    return;
  }
  set("data.use", "indexed", paths->text());
  std::vector<std::string> words = paths->values;
  if (words.size() == 1) {
    words = parts_of(words.front(), ' ');
  }
  Value::Array names, weights;
  const bool weighted = words.size() > 1 && words.size() % 2 == 0;
  for (size_t i = 0; i < words.size(); ++i) {
    if (weighted && i % 2 == 0) {
      weights.push_back(number_value(argument_number(*paths, words[i])));
    } else {
      names.emplace_back(words[i]);
    }
  }
  set("data.paths", std::move(names), "--data-path");
  if (weighted) {
    set("data.weights", std::move(weights), "--data-path");
  }
  const std::pair<const char*, const char*> flags[] = {
      {"reset-position-ids", "data.reset_positions"},
      {"reset-attention-mask", "data.reset_attention"},
      {"eod-mask-loss", "data.mask_eod_loss"}};
  for (const auto& [flag, key] : flags) {
    if (given_.has(flag)) {
      set(key, true, std::string("--") + flag);
    }
  }
}

} // namespace mh
