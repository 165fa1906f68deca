#include "core/train/checkpointing.hpp"

#include "core/base/number_text.hpp"
#include "core/base/visible.hpp"
#include "core/checkpoint/detect_format.hpp"
#include "core/checkpoint/format.hpp"
#include "core/checkpoint/shared_read.hpp"
#include "core/formats/json.hpp"
#include "core/model/plugin_call.hpp"

#include <nlohmann/json.hpp>

#include <cstdio>
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

nlohmann::json to_json(const Beginnings& beginnings) {
  nlohmann::json json{
      {"random", beginnings.random},
      {"samples", beginnings.samples},
      {"updates", beginnings.updates}};
  if (beginnings.seed) {
    json["seed"] = *beginnings.seed;
  }
  return json;
}

/// A number of either sign.
int64_t signed_member(const nlohmann::json& json, const char* key, const std::string& where) {
  return json_member(json, key, where).get<int64_t>();
}

Beginnings beginnings_from(const nlohmann::json& json, const std::string& where) {
  Beginnings beginnings{
      .random = signed_member(json, "random", where),
      .samples = signed_member(json, "samples", where),
      .updates = signed_member(json, "updates", where)};
  if (json.contains("seed")) {
    beginnings.seed = signed_member(json, "seed", where);
  }
  return beginnings;
}

nlohmann::json to_json(const Progress& progress) {
  nlohmann::json json{
      {"step", progress.step},
      {"samples", progress.samples},
      {"tokens", progress.tokens},
      {"seed", progress.seed},
      {"threads", progress.threads},
      {"cpu_level", progress.cpu_level},
      {"guards", to_json(progress.guards)},
      {"plugins", progress.plugins},
      {"schedule", progress.schedule},
      {"sections", progress.sections},
      {"data", progress.data}};
  if (progress.time > 0) {
    json["time"] = progress.time;
  }
  if (progress.validation_loss) {
    json["validation_loss"] = *progress.validation_loss;
  }
  if (progress.beginnings != Beginnings()) {
    json["beginnings"] = to_json(progress.beginnings);
  }
  return json;
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
  if (const auto beginnings = json.find("beginnings"); beginnings != json.end()) {
    progress.beginnings = beginnings_from(*beginnings, where);
  }
  progress.plugins = json_member(json, "plugins", where).get<std::vector<std::string>>();
  progress.data = json.contains("data") ? json_string(json, "data", where) : "";
  progress.sections =
      json_member(json, "sections", where).get<std::map<std::string, std::string>>();
  return progress;
}

} // namespace

std::vector<Slice> slices_of(const Weights& weights) {
  std::vector<Slice> slices;
  for (const auto& stored : weights.stored()) {
    if (stored.data.numel() == 0) {
      continue; // a rank's part of a vocabulary that ends before it
    }
    slices.push_back({stored.name, stored.piece->global_shape, stored.piece->offset, stored.data});
  }
  return slices;
}

std::string state_text(const Progress& progress) {
  return to_json(progress).dump();
}

Progress read_state(const std::string& text, const std::string& where) {
  return from_json(parse_json(text, where), where);
}

void require_all_used(const Progress& saved, const TensorFit& fit) {
  const auto& unused = fit.unused;
  if (!unused.empty()) {
    throw Error(
        "the checkpoint of step " + std::to_string(saved.step) + " holds the tensor " +
            unused.front() +
            (unused.size() > 1 ? " and " + std::to_string(unused.size() - 1) + " more" : "") +
            ", for which the model has no place",
        "resume with the recipe that the checkpoint was made with",
        exit_code::data
    );
  }
}

std::unique_ptr<CheckpointFormat> checkpoint_format(const Recipe& recipe, Host& host) {
  return host.make<CheckpointFormat>(recipe.checkpoint, {.storage = host.storage()});
}

void require_checkpoint(
    const CheckpointFormat& format,
    const std::filesystem::path& run,
    const std::function<std::string()>& help
) {
  const auto steps = steps_of(format, run);
  if (!steps || steps->empty()) {
    const std::string other = help ? help() : "";
    throw Error(
        "there is no checkpoint in " + run.string() + " to resume from",
        other.empty()
            ? "check --run-dir and checkpoint.dir; --resume=auto begins a new run where there is none"
            : other,
        exit_code::data
    );
  }
}

namespace {

StepFolder::Warn noted_in(std::vector<std::string>& notes) {
  return [&notes](const std::string& sentence) { notes.push_back("warning: " + sentence); };
}

} // namespace

void write_and_retain(
    const CheckpointFormat& format,
    const std::filesystem::path& run,
    const CheckpointContents& contents,
    const Retention& retention,
    const Ranks& ranks
) {
  in_plugin(format, "write", [&] { format.write(run, contents, ranks); });
  if (ranks.rank == 0) {
    remove_old_checkpoints(format, run, retention, contents.warn);
  }
}

void save_checkpoint(
    const CheckpointFormat& format,
    const std::filesystem::path& run,
    const Progress& progress,
    const Weights& weights,
    const Retention& retention,
    std::vector<std::string>& notes,
    const Ranks& ranks
) {
  const auto written = slices_of(weights);
  const CheckpointContents contents{
      .step = progress.step,
      .state = state_text(progress),
      .slices = written,
      .warn = noted_in(notes)};
  write_and_retain(format, run, contents, retention, ranks);
}

void say_load(const CheckpointReader& saved, const MappedSlices& slices, const Ranks& ranks) {
  if (ranks.rank != 0) {
    return;
  }
  uint64_t bytes = 0;
  for (const Slice& slice : slices.slices) {
    const auto size = c10::elementSize(saved.find(slice.name)->dtype);
    bytes += static_cast<uint64_t>(slice.local.numel()) * size;
  }
  for (const JoinedSlice& one : slices.joined) {
    const auto size = c10::elementSize(saved.find(one.box.name)->dtype);
    bytes += static_cast<uint64_t>(one.own.numel()) * size;
  }
  for (const PackedSlice& one : slices.packed) { // half a byte each, and one for 32
    bytes += static_cast<uint64_t>(one.own.numel()) * 17 / 32;
  }
  constexpr uint64_t kLarge =
      100'000'000; // less is within the noise of what a program takes anyway
  if (bytes < kLarge) {
    return;
  }
  // Ranks of one machine send one another what they read.
  const int64_t others = ranks.group == nullptr ? 0 : ranks.group->size() - 1;
  const uint64_t box = bytes_to_read(saved, slices, largest_boxes(saved));
  const uint64_t memory = others == 0 ? box : box * static_cast<uint64_t>(2 + others);
  std::fprintf(
      stderr,
      "loading %s of %s takes %s%s of memory in addition to what it fills\n",
      bytes_text(static_cast<int64_t>(bytes)).c_str(),
      visible(saved.path().string()).c_str(),
      others == 0 ? "" : "up to ",
      bytes_text(static_cast<int64_t>(memory)).c_str()
  );
}

std::optional<Progress> load_checkpoint(
    const CheckpointFormat& format,
    const std::filesystem::path& run,
    Weights& weights,
    std::vector<std::string>& notes,
    const Ranks& ranks,
    const AcceptCheckpoint& accept,
    const std::optional<ReadBy>& by
) {
  const Ranks& readers = by ? by->node : ranks;
  const std::string machine = by ? by->machine : machine_word();
  const auto wanted = slices_of(weights);
  std::optional<Progress> progress;
  std::unique_ptr<CheckpointReader> saved;
  const LoadAttempt attempt{
      .open = [&](int64_t step
              ) { saved = in_plugin(format, "open", [&] { return format.open(run, step); }); },
      .judge =
          [&] {
            const TensorFit fit{
                unused_tensors(*saved, wanted, readers), misfit_tensors(*saved, wanted, readers)};
            together(ranks, [&] {
              const std::string where = saved->path().string();
              if (saved->state().empty()) {
                throw Error(
                    where + " holds weights, and not the state that a run needs to go on",
                    "begin a new run with --weights " + run.string(),
                    exit_code::data
                );
              }
              progress = read_state(saved->state(), where);
              accept(*progress, fit);
              // Any dtype will do: optimizer.state_dtype may have changed.
              for (const Slice& slice : wanted) {
                (void)require_fit(*saved, slice);
              }
              return std::string();
            });
          },
      .load =
          [&] {
            say_load(*saved, {.slices = wanted}, ranks);
            in_plugin(format, "read", [&] { read_together(*saved, wanted, ranks, machine); });
          }};
  const auto steps = steps_of(format, run);
  if (!load_newest(
          format.place(run), steps.value_or(std::vector<int64_t>()), attempt, noted_in(notes), ranks
      )) {
    return std::nullopt;
  }
  weights.publish();
  return progress;
}

std::vector<std::string> differences(const Progress& saved, const Progress& now) {
  std::vector<std::string> sentences;
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
