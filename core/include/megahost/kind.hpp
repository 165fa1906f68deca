#pragma once
/// The kinds of plugin. Each has its interface class in the header of its name.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace mh {

enum class Kind : uint8_t {
  architecture,
  strategy,
  recompute,
  optimizer,
  lr_schedule,
  pipeline_schedule,
  corpus,
  tokenizer,
  launcher,
  device,
  checkpoint_format,
  storage,
};

/// The names of a kind in recipes and of its files.
struct KindInfo {
  Kind kind;
  std::string_view name;    ///< "lr_schedule"
  std::string_view section; ///< a recipe's section or key: `section.use` is a name
  std::string_view folder;  ///< start of a plugin's file name: "optimizers" of optimizers-adamw.so
};

/// One row per kind, in the order of the enumeration.
inline constexpr std::array<KindInfo, 12> kKinds{{
    {Kind::architecture, "architecture", "model", "models"},
    {Kind::strategy, "strategy", "parallel", "parallel"},
    {Kind::recompute, "recompute", "recompute", "recompute"},
    {Kind::optimizer, "optimizer", "optimizer", "optimizers"},
    {Kind::lr_schedule, "lr_schedule", "lr_schedule", "optimizers"},
    {Kind::pipeline_schedule, "pipeline_schedule", "parallel", "parallel"},
    {Kind::corpus, "corpus", "data", "data"},
    {Kind::tokenizer, "tokenizer", "tokenizer", "data"},
    {Kind::launcher, "launcher", "launcher", "launchers"},
    {Kind::device, "device", "device", "devices"},
    {Kind::checkpoint_format, "checkpoint_format", "checkpoint", "checkpoints"},
    {Kind::storage, "storage", "storage", "storage"},
}};

[[nodiscard]] constexpr const KindInfo& info(Kind kind) {
  return kKinds[static_cast<size_t>(kind)];
}

} // namespace mh
