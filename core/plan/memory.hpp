#pragma once
/// Memory of a plan as text and pages tell it.

#include "core/draw/terminal.hpp"
#include "core/plan/plan.hpp"
#include "megahost/recipe.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace mh {

/// A part of a stage's memory; parts add up to `StagePlan::total`.
struct MemoryPart {
  const char* name;
  const char* brief; ///< where there is little room
  int64_t StagePlan::*bytes;
};

inline constexpr std::array<MemoryPart, 6> kMemoryParts{{
    {"weights", "weights", &StagePlan::parameters},
    {"gradients", "grads", &StagePlan::gradients},
    {"optimizer", "optim", &StagePlan::state},
    {"activations", "activ", &StagePlan::activations},
    {"workspace", "work", &StagePlan::workspace},
    {"reserved", "reserve", &StagePlan::reserved},
}};

/// What `reserved` stands for.
[[nodiscard]] std::string reserved_text(const Plan& plan);

/// Bytes in GiB.
[[nodiscard]] std::string gib(int64_t bytes);

/// "tight", "too much"; empty where there is room, or it is not known.
[[nodiscard]] std::string fit_text(Fit fit);
[[nodiscard]] Paint fit_paint(Fit fit);
/// `separator` and the text; empty where the text is.
[[nodiscard]] std::string behind(const char* separator, const std::string& text);

/// Bytes of a rank's copy of what is saved, where checkpoints are written in the background; else 0.
[[nodiscard]] int64_t copied_bytes(const Plan& plan, const StagePlan& stage, const Recipe& recipe);
/// A sentence about the largest of these copies; empty where there is none.
[[nodiscard]] std::string copy_note(const Plan& plan, const Recipe& recipe);

/// Stages to show: all of a few; of many the ends and the fullest.
[[nodiscard]] std::vector<size_t> shown_stages(const Plan& plan);

/// A row for each stage, with a bar where the terminal has room, and what `reserved` is.
[[nodiscard]] std::string memory_table(const Plan& plan, const Terminal& terminal);

} // namespace mh
