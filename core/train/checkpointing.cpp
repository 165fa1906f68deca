#include "core/train/checkpointing.hpp"

#include "core/checkpoint/checkpoint.hpp"
#include "core/formats/json.hpp"
#include "core/storage/local.hpp"

#include <nlohmann/json.hpp>

#include <utility>

namespace mh {
namespace {

nlohmann::json to_json(const GuardState& guards) {
  nlohmann::json json{
      {"losses", guards.losses},
      {"skipped", guards.skipped},
      {"rewinds", guards.rewinds},
      {"skipped_samples", guards.skipped_samples}};
  if (const auto& scale = guards.loss_scale) {
    json["loss_scale"] = {
        {"scale", scale->scale}, {"growth", scale->growth}, {"hysteresis", scale->hysteresis}};
  }
  return json;
}

GuardState guards_from(const nlohmann::json& json, const std::string& where) {
  GuardState guards{
      .loss_scale = std::nullopt,
      .losses = json_member(json, "losses", where).get<std::vector<double>>(),
      .skipped = json_size(json, "skipped", where),
      .rewinds = json_size(json, "rewinds", where),
      .skipped_samples = json_size(json, "skipped_samples", where)};
  if (const auto scale = json.find("loss_scale"); scale != json.end()) {
    guards.loss_scale = LossScale::State{
        .scale = json_member(*scale, "scale", where).get<double>(),
        .growth = json_size(*scale, "growth", where),
        .hysteresis = json_member(*scale, "hysteresis", where).get<int64_t>()};
  }
  return guards;
}

nlohmann::json to_json(const Progress& progress) {
  return {
      {"step", progress.step},
      {"samples", progress.samples},
      {"tokens", progress.tokens},
      {"seed", progress.seed},
      {"threads", progress.threads},
      {"cpu_level", progress.cpu_level},
      {"guards", to_json(progress.guards)},
      {"plugins", progress.plugins},
      {"schedule", progress.schedule},
      {"sections", progress.sections}};
}

Progress from_json(const nlohmann::json& json, const std::string& where) {
  Progress progress;
  progress.step = json_size(json, "step", where);
  progress.samples = json_size(json, "samples", where);
  progress.tokens = json_size(json, "tokens", where);
  progress.seed = json_member(json, "seed", where).get<int64_t>();
  progress.threads = json_size(json, "threads", where);
  progress.cpu_level = json_string(json, "cpu_level", where);
  progress.schedule = json.contains("schedule") ? json_string(json, "schedule", where) : "";
  if (const auto guards = json.find("guards"); guards != json.end()) { // older checkpoints: none
    progress.guards = guards_from(*guards, where);
  }
  progress.plugins = json_member(json, "plugins", where).get<std::vector<std::string>>();
  progress.sections =
      json_member(json, "sections", where).get<std::map<std::string, std::string>>();
  return progress;
}

std::vector<Slice> slices(const Weights& weights) {
  std::vector<Slice> slices;
  for (const auto& stored : weights.stored()) {
    slices.push_back({stored.name, stored.piece->global_shape, stored.piece->offset, stored.data});
  }
  return slices;
}

} // namespace

std::filesystem::path checkpoint_folder(const std::filesystem::path& run) {
  return run / "checkpoints";
}

void save_checkpoint(
    const std::filesystem::path& run,
    const Progress& progress,
    const Weights& weights,
    int64_t keep,
    std::vector<std::string>& notes,
    const Ranks& ranks
) {
  LocalStorage disk;
  StepFolder folder(disk, checkpoint_folder(run), [&](const std::string& sentence) {
    notes.push_back("warning: " + sentence);
  });
  on_first(ranks, [&] {
    folder.recover();
    return std::string();
  });
  write_checkpoint(disk, folder, progress.step, to_json(progress), slices(weights), ranks);
  if (keep > 0 && ranks.rank == 0) {
    folder.keep_last(keep, whole_checkpoint(disk));
  }
}

std::optional<Progress> load_checkpoint(
    const std::filesystem::path& run,
    Weights& weights,
    std::vector<std::string>& notes,
    const Ranks& ranks
) {
  LocalStorage disk;
  const StepFolder folder(disk, checkpoint_folder(run), [&](const std::string& sentence) {
    notes.push_back("warning: " + sentence);
  });
  const std::string found = on_first(ranks, [&] {
    const auto step = folder.newest(whole_checkpoint(disk));
    return step ? folder.path(*step).string() : std::string();
  });
  if (found.empty()) {
    return std::nullopt;
  }
  std::optional<Progress> progress;
  together(ranks, [&] {
    Checkpoint saved(disk, found);
    saved.load(slices(weights), OtherDtype::convert); // optimizer.state_dtype may have changed
    progress = from_json(saved.manifest().state, found);
    return std::string();
  });
  weights.publish();
  return progress;
}

std::map<std::string, std::string> deciding_sections(const Recipe& recipe) {
  std::map<std::string, std::string> sections;
  for (const auto* key :
       {"model",
        "parallel",
        "optimizer",
        "lr_schedule",
        "precision",
        "batch",
        "data",
        "tokenizer",
        "device"}) {
    if (const auto* section = recipe.tree.find(key)) {
      sections[key] = to_text(*section);
    }
  }
  sections["train.seed"] = std::to_string(recipe.train.seed);
  sections["train.iters"] = std::to_string(recipe.iterations());
  return sections;
}

std::vector<std::string> differences(const Progress& saved, const Progress& now) {
  std::vector<std::string> sentences;
  std::string changed;
  for (const auto& [name, text] : now.sections) {
    const auto found = saved.sections.find(name);
    if (found == saved.sections.end() || found->second != text) {
      changed += (changed.empty() ? "" : ", ") + name;
    }
  }
  if (!changed.empty()) {
    sentences.push_back("the recipe has changed since the checkpoint in: " + changed);
  }
  if (saved.threads != now.threads) {
    sentences.push_back(
        "the checkpoint was written with " + std::to_string(saved.threads) +
        " threads, this run has " + std::to_string(now.threads) +
        ": the last bits of its numbers will differ (OMP_NUM_THREADS sets them)"
    );
  }
  if (saved.cpu_level != now.cpu_level) {
    sentences.push_back(
        "the checkpoint was written on " + saved.cpu_level + ", this machine runs " +
        now.cpu_level + ": the last bits of its numbers will differ"
    );
  }
  if (saved.plugins != now.plugins) {
    sentences.push_back("other plugins or versions than those of the checkpoint");
  }
  return sentences;
}

} // namespace mh
