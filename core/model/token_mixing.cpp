#include "core/model/token_mixing.hpp"

#include "core/model/plugin_call.hpp"
#include "megahost/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <string>
#include <utility>

namespace mh {

namespace {

constexpr Along kSplit{PlacementType::split, 0};
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

thread_local bool tries = false;

bool is_of_tokens(const Dims& dims) {
  return !dims.empty() && dims.front().logical == axis::seq;
}

/// The mesh axis over which rows of tokens are split; pp if over none.
MeshAxis split_over(const Dims& dims, const StepContext& context, Tier upto = Tier::between) {
  const Placement placed = context.rules().place(dims, context.mesh(), upto);
  for (const auto axis : {MeshAxis::cp, MeshAxis::tp}) {
    if (placed[axis] == kSplit && context.mesh().size(axis) > 1) {
      return axis;
    }
  }
  return MeshAxis::pp;
}

/// Whether the corpus tells the documents of samples apart.
bool has_documents(const StepContext& context) {
  const auto& arrays = context.batch().arrays;
  return std::any_of(arrays.begin(), arrays.end(), [](const auto& array) {
    return array.first.ends_with("segments");
  });
}

/// The tokens that a pass changes. Two rows of a sample are of different kinds in some pass: the
/// first pattern tells rows apart at every distance up to half of them, the second at every larger
/// one. A microbatch of several samples tries several at once.
struct RowPattern {
  int64_t number = 0; ///< kind of the first sample's pattern; each further sample has the next kind
  bool odd = false;

  /// `unit`: rows that a rank holds at least.
  [[nodiscard]] bool changes(int64_t row, int64_t sample, int64_t unit) const {
    const int64_t kind = number + sample;
    const auto bits = static_cast<uint64_t>(row);
    const bool is_odd = kind == 0   ? std::popcount(bits) % 2 == 1 // Thue-Morse
                        : kind == 1 ? row % unit >= unit / 2
                                    : (bits >> static_cast<uint64_t>(kind % 16)) % 2 == 1;
    return is_odd == odd;
  }
};

/// Rows of tokens of one sequence, as this rank holds them.
class TokenRows {
public:
  TokenRows(const StepContext& context, int64_t seq)
      : context_(context)
      , tokens_(0) {
    for (const TokenRun& run : context.rules().token_runs(seq, context.mesh())) {
      tokens_ += run.count;
    }
    const Dims dims{{axis::seq, seq}};
    unit_ = local_sizes(dims, context.rules().place(dims, context.mesh()), context.mesh())[0];
  }

  /// Rows along seq of the arrays that a trial makes.
  [[nodiscard]] int64_t tokens() const { return tokens_; }

  /// The rows that a pattern changes in a tensor of [rows, batch, ...]: bool [rows, batch, 1, ...],
  /// on its device.
  [[nodiscard]] at::Tensor changed(const at::Tensor& x, const RowPattern& pattern) const {
    const int64_t rows = x.size(0), batch = x.dim() > 1 ? x.size(1) : 1;
    const int64_t first =
        rows < tokens_ ? context_.mesh().coordinate(MeshAxis::tp) * rows : 0; // among arrays' rows
    const at::Tensor changed = at::empty({rows, batch}, at::kBool);
    bool* at = changed.data_ptr<bool>();
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t sample = 0; sample < batch; ++sample) {
        *at++ = pattern.changes(first + row, sample, unit_);
      }
    }
    std::vector<int64_t> sizes(static_cast<size_t>(x.dim()), 1);
    sizes[0] = rows;
    if (sizes.size() > 1) {
      sizes[1] = batch;
    }
    return changed.view(sizes).to(x.device());
  }

private:
  const StepContext& context_;
  int64_t tokens_, unit_ = 1;
};

/// An array that has, in changed places, the values of other changed places of the sample, some
/// twice, so that neither values nor their sum stay; of floats half of them.
at::Tensor with_others(const at::Tensor& array, const at::Tensor& changed) {
  const int64_t rows = array.size(0), batch = array.size(1);
  const at::Tensor flags = changed.to(at::kCPU).reshape({rows, batch});
  const at::Tensor from = at::arange(rows).unsqueeze(1).expand({rows, batch}).contiguous();
  const bool* flag = flags.const_data_ptr<bool>();
  auto* index = from.data_ptr<int64_t>();
  for (int64_t sample = 0; sample < batch; ++sample) {
    std::vector<int64_t> places;
    for (int64_t row = 0; row < rows; ++row) {
      if (flag[row * batch + sample]) {
        places.push_back(row);
      }
    }
    for (size_t k = 0; k < places.size(); ++k) {
      index[places[k] * batch + sample] = places[places.size() - 1 - k / 2];
    }
  }
  std::vector<int64_t> sizes(static_cast<size_t>(array.dim()), 1);
  sizes[0] = rows, sizes[1] = batch;
  const at::Tensor others =
      array.gather(0, from.to(array.device()).view(sizes).expand(array.sizes()));
  return array.is_floating_point() ? at::where(changed, others * 0.5, others) : others;
}

/// Arrays such as "positions" say where a token is, and belong to no row.
bool is_place(const std::string& array) {
  return array.ends_with("positions") || array.ends_with("segments") ||
         array.ends_with("token_index");
}

Batch with_other_tokens(const StepContext& context, const RowPattern& pattern) {
  Batch batch = context.batch();
  for (auto& [name, array] : batch.arrays) {
    int64_t seq = batch.seq;
    for (const auto& [sequence, length] : batch.sequences) {
      seq = name.starts_with(sequence + "_") ? length : seq;
    }
    const TokenRows rows(context, seq);
    if (!is_place(name) && array.dim() > 1 && array.size(0) == rows.tokens()) {
      array = with_others(array, rows.changed(array, pattern));
    }
  }
  return batch;
}

/// No gradients of parameters for as long as the object lives.
class Frozen {
public:
  explicit Frozen(const std::vector<Parameter*>& parameters) {
    for (Parameter* parameter : parameters) {
      if (parameter->value.requires_grad()) {
        trained_.push_back(parameter);
        parameter->value.set_requires_grad(false);
      }
    }
  }

  ~Frozen() {
    for (Parameter* parameter : trained_) {
      parameter->value.set_requires_grad(true);
    }
  }

  Frozen(const Frozen&) = delete;
  Frozen& operator=(const Frozen&) = delete;

private:
  std::vector<Parameter*> trained_;
};

/// The outcome of a pass: the results, and the gradients of the block's inputs.
struct Outcome {
  State results, gradients;
};

class MixingProbe {
public:
  MixingProbe(const TriedBlock& block, const State& state, const StepContext& context)
      : block_(block)
      , state_(state)
      , context_(context) {}

  /// Without a pattern as it is.
  Outcome run(const RowPattern* pattern) const {
    const Batch batch =
        pattern == nullptr ? context_.batch() : with_other_tokens(context_, *pattern);
    StepContext apart = context_.apart(batch);
    State input = state_;
    std::vector<at::Tensor> inputs;
    for (const auto& [name, activation] : state_) {
      if (activation.value.is_floating_point()) {
        input.set(name, spoilt(activation, pattern).requires_grad_(), activation.dims);
        inputs.push_back(input[name].value);
      }
    }
    Outcome outcome;
    State results = block_.run(input, apart);
    for (const auto& [name, activation] : results) {
      outcome.results.set(name, activation.value.detach(), activation.dims);
    }
    std::vector<at::Tensor> roots, root_gradients;
    for (const auto& [name, activation] : results) {
      if (activation.value.requires_grad()) {
        roots.push_back(activation.value);
        root_gradients.push_back(spoilt({ramp(activation.value), activation.dims}, pattern));
      }
    }
    for (const Loss& loss : apart.losses()) {
      if (loss.weight != 0 && loss.sum.requires_grad()) {
        roots.push_back(loss.sum);
        root_gradients.push_back(at::ones_like(loss.sum));
      }
    }
    if (roots.empty() || inputs.empty()) {
      return outcome;
    }
    std::vector<at::Tensor> gradients;
    in_backward([&] {
      gradients = torch::autograd::grad(
          roots, inputs, root_gradients, std::nullopt, false, /*allow_unused=*/true
      );
    });
    auto next = gradients.begin();
    for (const auto& [name, activation] : state_) {
      if (activation.value.is_floating_point() && next++->defined()) {
        outcome.gradients.set(name, next[-1], activation.dims);
      }
    }
    return outcome;
  }

  /// Compares what the pattern did not change.
  void compare(const State& sound, const State& found, const RowPattern& pattern, const char* what)
      const {
    for (const auto& [name, activation] : sound) {
      if (!is_checked(activation) || !found.has(name)) {
        continue;
      }
      const at::Tensor &a = activation.value, &b = found[name].value;
      if (a.sizes() == b.sizes() && !same(a, b, rows_of(activation).changed(a, pattern))) {
        require_repeatable();
        refuse(what, name, activation.dims);
      }
    }
  }

private:
  [[nodiscard]] TokenRows rows_of(const Activation& activation) const {
    return {context_, activation.dims.front().size};
  }

  [[nodiscard]] bool is_checked(const Activation& activation) const {
    return is_of_tokens(activation.dims) &&
           (documents_ || split_over(activation.dims, context_) != MeshAxis::pp);
  }

  [[nodiscard]] at::Tensor spoilt(const Activation& activation, const RowPattern* pattern) const {
    const at::Tensor value = activation.value.detach();
    return pattern == nullptr || !is_checked(activation)
               ? value.clone()
               : value.masked_fill(rows_of(activation).changed(value, *pattern), kNaN);
  }

  /// A gradient that is nowhere the same.
  static at::Tensor ramp(const at::Tensor& like) {
    const auto options = like.options().dtype(at::kFloat).requires_grad(false);
    return (at::arange(like.numel(), options) * 0.6180339887F)
        .sin_()
        .add_(1.5)
        .view(like.sizes())
        .to(like.scalar_type());
  }

  /// Kernels may add up in another order where other rows are others: a mixture's experts get other
  /// numbers of them. Rows with NaN pass here: the checks of numbers report them.
  [[nodiscard]] bool
  same(const at::Tensor& a, const at::Tensor& b, const at::Tensor& changed) const {
    if (!a.is_floating_point()) {
      return !a.ne(b).bitwise_and(changed.bitwise_not()).any().item<bool>();
    }
    const double share = a.scalar_type() == at::kDouble  ? 1e-9
                         : a.scalar_type() == at::kFloat ? 1e-3
                                                         : 5e-2;
    const at::Tensor known = a.isfinite().bitwise_and(changed.bitwise_not());
    if (block_.coarse) {
      return !b.isnan().bitwise_and(known).any().item<bool>();
    }
    const at::Tensor size = at::where(known, a.abs(), at::zeros({}, a.options()));
    const at::Tensor most = a.dim() > 2 ? size.amax(-1, /*keepdim=*/true) : size;
    const at::Tensor limit = (most + size.amax() * 1e-3) * share;
    return !(a - b).abs().le(limit).bitwise_not().bitwise_and(known).any().item<bool>();
  }

  /// Refuses a block whose numbers change from call to call, which says nothing of other tokens.
  void require_repeatable() const {
    const State one = run(nullptr).results, two = run(nullptr).results;
    for (const auto& [name, activation] : one) {
      if (!activation.value.nan_to_num().equal(two[name].value.nan_to_num())) {
        throw Error(
            std::string(block_.name) + ": `" + name +
                "` is not the same when the block runs again on the same input",
            "keep nothing from one call to the next, and let numbers be random by mh::ops::dropout "
            "alone",
            exit_code::numbers
        );
      }
    }
  }

  [[noreturn]] void refuse(const char* what, const std::string& name, const Dims& dims) const {
    const MeshAxis split = split_over(dims, context_);
    const std::string why = split == MeshAxis::pp
                                ? "a sample may hold several documents"
                                : "the ranks of " + std::string(to_string(split)) +
                                      " hold different tokens of a sample";
    throw Error(
        std::string(block_.name) + ": " + what + " `" + name +
            "` depends on other tokens' rows in a way that is not declared, and " + why,
        "take rows of other tokens from mh::TokensBefore or mh::AllTokens "
        "(megahost/nn/tokens_before.hpp), or attend with mh::attend",
        exit_code::numbers
    );
  }

  const TriedBlock& block_;
  const State& state_;
  const StepContext& context_;
  const bool documents_ = has_documents(context_);
};

} // namespace

bool keeps_tokens_apart(const StepContext& context) {
  const auto splits = [&](int64_t seq) {
    return split_over({{axis::seq, seq}}, context) != MeshAxis::pp;
  };
  const Batch& batch = context.batch();
  return has_documents(context) || splits(batch.seq) ||
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

State check_token_mixing(const TriedBlock& block, const State& state, const StepContext& context) {
  const at::AutoGradMode grad(true);
  const Frozen frozen(block.parameters);
  const MixingProbe probe(block, state, context);
  const Outcome sound = probe.run(nullptr);
  const Batch& batch = context.batch();
  const Dims samples{{axis::batch, batch.batch}};
  const Placement placed = context.rules().place(samples, context.mesh());
  const bool several = local_sizes(samples, placed, context.mesh())[0] > 1;
  const int64_t kinds = several ? 1 : 2; // several samples try both at once
  for (int64_t number = 0; number < kinds; ++number) {
    for (const bool odd : {false, true}) {
      const RowPattern pattern{number, odd};
      const Outcome found = probe.run(&pattern);
      probe.compare(sound.results, found.results, pattern, "a token's row of its");
      probe.compare(
          sound.gradients,
          found.gradients,
          pattern,
          "the gradient of a token's row of what it reads as"
      );
    }
  }
  return sound.results;
}

} // namespace mh
