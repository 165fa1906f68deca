#include "core/model/token_mixing.hpp"

#include "megahost/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <string>
#include <vector>

namespace mh {

namespace {

constexpr Along kSplit{PlacementType::split, 0};

thread_local bool tries = false;

/// The mesh axis over which the tokens of an activation are split; pp if over none.
MeshAxis split_over(const Dims& dims, const StepContext& context) {
  if (dims.empty() || !(dims.front().logical == axis::seq)) {
    return MeshAxis::pp;
  }
  const Placement placed = context.rules().place(dims, context.mesh());
  for (const auto axis : {MeshAxis::cp, MeshAxis::tp}) {
    if (placed[axis] == kSplit && context.mesh().size(axis) > 1) {
      return axis;
    }
  }
  return MeshAxis::pp;
}

bool is_checked(const Activation& activation, const StepContext& context) {
  return at::isFloatingType(activation.value.scalar_type()) &&
         split_over(activation.dims, context) != MeshAxis::pp;
}

/// The rows of a Thue-Morse sequence, or the others: two rows of every distance up to half of them
/// are of different kinds.
at::Tensor rows_of(const at::Tensor& x, bool odd) {
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < x.size(0); ++row) {
    if ((std::popcount(static_cast<uint64_t>(row)) % 2 == 1) == odd) {
      rows.push_back(row);
    }
  }
  return at::tensor(rows, x.options().dtype(at::kLong));
}

State with_nan(const State& state, bool odd, const StepContext& context) {
  State poisoned = state;
  for (const auto& [name, activation] : state) {
    if (is_checked(activation, context)) {
      const at::Tensor rows = rows_of(activation.value, odd);
      poisoned.set(
          name,
          activation.value.index_fill(0, rows, std::numeric_limits<double>::quiet_NaN()),
          activation.dims
      );
    }
  }
  return poisoned;
}

bool has_nan(const at::Tensor& x, bool odd) {
  return at::isnan(x.index_select(0, rows_of(x, odd))).any().item<bool>();
}

} // namespace

bool splits_tokens(const StepContext& context) {
  const auto splits = [&](int64_t seq) {
    return split_over({{axis::seq, seq}}, context) != MeshAxis::pp;
  };
  const Batch& batch = context.batch();
  return splits(batch.seq) ||
         std::any_of(batch.sequences.begin(), batch.sequences.end(), [&](const auto& one) {
           return splits(one.second);
         });
}

MixingTrial::MixingTrial() {
  tries = true;
}

MixingTrial::~MixingTrial() {
  tries = false;
}

bool MixingTrial::runs() {
  return tries;
}

State check_token_mixing(
    std::string_view block,
    const State& state,
    const StepContext& context,
    const std::function<State(const State& state, StepContext& context)>& run
) {
  const at::NoGradGuard no_grad;
  StepContext apart = context.apart();
  State sound = run(state, apart);
  for (const bool odd : {false, true}) {
    StepContext again = context.apart();
    const State found = run(with_nan(state, odd, context), again);
    for (const auto& [name, activation] : found) {
      if (is_checked(activation, context) && has_nan(activation.value, !odd) &&
          !has_nan(sound[name].value, !odd)) {
        throw Error(
            std::string(block) + ": a token's row of its `" + name +
                "` depends on other tokens' rows in a way that is not declared, and the ranks of " +
                std::string(to_string(split_over(activation.dims, context))) +
                " hold different tokens of a sample",
            "take rows of other tokens from mh::TokensBefore or mh::AllTokens "
            "(megahost/nn/tokens_before.hpp), or attend with mh::attend",
            exit_code::numbers
        );
      }
    }
  }
  return sound;
}

} // namespace mh
