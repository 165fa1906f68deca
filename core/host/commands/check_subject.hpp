#pragma once
/// What `megahost check` checks, and a trial of it on ranks that are processes.

#include "core/host/invocation.hpp"
#include "core/recipe/commands.hpp"
#include "core/recipe/layouts.hpp"
#include "core/train/trial.hpp"
#include "megahost/host.hpp"

#include <array>
#include <cstdint>

namespace mh {

struct Precision {
  const char* name;
  at::ScalarType dtype;
  double bound;
  int finer; ///< index of the format that tells what rounding alone does; -1: none
};

inline constexpr std::array<Precision, 3> kPrecisions{{
    {"float64", at::kDouble, 1e-12, -1},
    {"fp32", at::kFloat, 1e-5, -1},
    {"bf16", at::kBFloat16, 0, 1},
}};

/// The recipe that is checked, under any layout.
class Subject {
public:
  Subject(const Invocation& invocation, Host& host);

  /// Throws:  RecipeError where the model, or check's own rules, refuse the layout
  [[nodiscard]] Resolved under(const Layout& layout) const;

private:
  [[nodiscard]] Loaded base(LoadOptions options) const;

  const Invocation& invocation_;
  Host& host_;
};

/// Runs a layout as so many processes of this same command, and reads what they left behind.
[[nodiscard]] TrialResult
trial_on_processes(const Layout& layout, const Precision& precision, int64_t ranks);

/// This process is one rank of a trial.
int run_rank(const Subject& subject, Host& host);

} // namespace mh
