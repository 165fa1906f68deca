#include "convolution.hpp"

#include "rows_at_once.hpp"

#include <megahost/saved.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace mh::hybrid {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Some rows of a run, with those that their taps reach.
class Window {
public:
  /// Args:    x: [seq, batch, channels] of this rank; before: [taps - 1, batch, channels] of the run
  ///          row: of the run's first token in x; first, count: the rows, counted from there
  ///          documents: of the run's tokens, those before them included; or undefined
  Window(
      const at::Tensor& x,
      const at::Tensor& before,
      int64_t row,
      int64_t first,
      int64_t count,
      const at::Tensor& documents
  )
      : back_(before.size(0))
      , count_(count) {
    const int64_t missing = std::max<int64_t>(0, back_ - first); // rows of `before`
    rows_ = x.narrow(0, row + first - back_ + missing, back_ - missing + count);
    if (missing > 0) {
      rows_ = at::cat({before.narrow(0, first, missing), rows_});
    }
    if (documents.defined()) {
      documents_ = documents.narrow(0, first, back_ + count);
    }
  }

  /// The rows that weight `tap` meets; zeros where they are of another document.
  [[nodiscard]] at::Tensor at_tap(int64_t tap) const {
    const at::Tensor rows = rows_.narrow(0, tap, count_);
    return documents_.defined() ? rows.masked_fill(others(tap), 0) : rows;
  }

  /// The part of a gradient that reaches those rows.
  [[nodiscard]] at::Tensor through(int64_t tap, const at::Tensor& gradient) const {
    return documents_.defined() ? gradient.masked_fill(others(tap), 0) : gradient;
  }

private:
  [[nodiscard]] at::Tensor others(int64_t tap) const {
    return documents_.narrow(0, tap, count_).ne(documents_.narrow(0, back_, count_)).unsqueeze(-1);
  }

  int64_t back_, count_;
  at::Tensor rows_;      // [taps - 1 + count, batch, channels]
  at::Tensor documents_; // [taps - 1 + count, batch], or undefined
};

struct Convolve : torch::autograd::Function<Convolve> {
  struct Saved {
    std::vector<TokenRun> runs;
    int64_t at_once; // rows
  };

  /// [channels, 1, taps] -> taps of [channels], one behind the other
  static variable_list taps_of(const at::Tensor& weight) {
    return weight.select(1, 0).t().contiguous().unbind(0);
  }

  /// bias + the taps' sum, before the activation.
  static at::Tensor
  summed(const Window& window, const variable_list& taps, const at::Tensor& bias) {
    at::Tensor sum;
    for (size_t k = 0; k < taps.size(); ++k) {
      const at::Tensor rows = window.at_tap(static_cast<int64_t>(k));
      if (k == 0) {
        sum = rows * taps[0];
      } else {
        sum.addcmul_(rows, taps[k]);
      }
    }
    return bias.defined() ? sum.add_(bias) : sum;
  }

  /// Calls `visit` with the windows of a run's rows and their place in x.
  template <class Visit>
  static void each_window(
      const at::Tensor& x,
      const at::Tensor& before,
      const at::Tensor& documents,
      const Saved& how,
      const Visit& visit
  ) {
    int64_t row = 0;
    const auto& [runs, at_once] = how;
    const int64_t back = before.size(1);
    for (size_t run = 0; run < runs.size(); ++run) {
      const auto index = static_cast<int64_t>(run);
      at::Tensor own;
      if (documents.defined()) { // nothing is read before the sample: any number does
        const int64_t missing = std::max<int64_t>(0, back - runs[run].first);
        own =
            documents.narrow(0, runs[run].first - back + missing, back - missing + runs[run].count);
        own = missing > 0 ? at::cat({documents.narrow(0, 0, 1).expand({missing, -1}), own}) : own;
      }
      for (int64_t first = 0; first < runs[run].count; first += at_once) {
        const int64_t count = std::min(at_once, runs[run].count - first);
        visit(Window(x, before[index], row, first, count, own), index, first, row + first, count);
      }
      row += runs[run].count;
    }
  }

  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& x,
      const at::Tensor& before,
      const at::Tensor& weight,
      const std::optional<at::Tensor>& bias,
      const std::optional<at::Tensor>& documents,
      const Saved& how
  ) {
    const at::Tensor tokens = documents.value_or(at::Tensor());
    const auto taps = taps_of(weight);
    at::Tensor y = at::empty_like(x, at::MemoryFormat::Contiguous);
    each_window(
        x,
        before,
        tokens,
        how,
        [&](const Window& window, int64_t, int64_t, int64_t row, int64_t count) {
          at::Tensor rows = y.narrow(0, row, count);
          at::silu_out(rows, summed(window, taps, bias.value_or(at::Tensor())));
        }
    );
    ctx->save_for_backward({x, before, weight, bias.value_or(at::Tensor()), tokens});
    save(ctx, how);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &before = saved[1], &weight = saved[2], &bias = saved[3];
    const Saved& how = get_saved<Saved>(ctx);
    const auto& runs = how.runs;
    const auto taps = taps_of(weight);
    const auto wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const int64_t back = before.size(1), channels = x.size(2);
    const at::Tensor dtaps = at::zeros({back + 1, channels}, x.options().dtype(wide));
    at::Tensor dbias = bias.defined() ? at::zeros_like(dtaps[0]) : at::Tensor();
    std::vector<at::Tensor> reached; // for each run: gradients of the rows before it, then its own
    for (const TokenRun& run : runs) {
      reached.push_back(at::zeros({back + run.count, x.size(1), channels}, x.options()));
    }
    each_window(
        x,
        before,
        saved[4],
        how,
        [&](const Window& window, int64_t run, int64_t first, int64_t row, int64_t count) {
          const at::Tensor du =
              at::silu_backward(gradients[0].narrow(0, row, count), summed(window, taps, bias));
          for (size_t k = 0; k < taps.size(); ++k) {
            const auto tap = static_cast<int64_t>(k);
            const at::Tensor part = window.through(tap, du);
            reached[static_cast<size_t>(run)].narrow(0, first + tap, count).addcmul_(part, taps[k]);
            dtaps[tap].add_((part * window.at_tap(tap)).sum(at::IntArrayRef{0, 1}, false, wide));
          }
          if (dbias.defined()) {
            dbias.add_(du.sum(at::IntArrayRef{0, 1}, false, wide));
          }
        }
    );
    at::Tensor dx, dbefore = at::empty_like(before, at::MemoryFormat::Contiguous);
    std::vector<at::Tensor> own;
    for (size_t run = 0; run < reached.size(); ++run) {
      dbefore[static_cast<int64_t>(run)].copy_(reached[run].narrow(0, 0, back));
      own.push_back(reached[run].narrow(0, back, runs[run].count));
    }
    dx = own.size() == 1 ? own[0] : at::cat(own);
    dbias = dbias.defined() ? dbias.to(bias.scalar_type()) : dbias;
    return {
        dx,
        dbefore,
        dtaps.t().unsqueeze(1).to(weight.scalar_type()),
        dbias,
        at::Tensor(),
        at::Tensor()};
  }
};

} // namespace

Convolution::Convolution(
    Builder& builder,
    const std::vector<std::pair<std::string, Axis>>& pieces,
    int64_t taps,
    bool bias
)
    : before_(builder, "before", pieces.front().second, taps - 1) {
  const double bound = 1 / std::sqrt(static_cast<double>(taps));
  std::vector<ParamSpec> weights, biases;
  for (const auto& [name, axis] : pieces) {
    weights.push_back(
        {name + ".weight", {axis, {{"channel"}, 1}, {{"tap"}, taps}}, Init::uniform(-bound, bound)}
    );
    biases.push_back({name + ".bias", {axis}, Init::zeros()});
  }
  const Placement seen = builder.place(pieces.front().second);
  weight_ = &builder.parameter(weights, seen);
  if (bias) {
    bias_ = &builder.parameter(biases, seen);
  }
}

at::Tensor
Convolution::forward(const at::Tensor& x, const at::Tensor& documents, StepContext& context) const {
  const auto optional = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
  };
  const at::Tensor before = before_.before_runs(x, context);
  const at::Tensor bias = bias_ == nullptr ? at::Tensor() : bias_->value;
  if (context.mode().tokens_apart) { // each token alone: the last tap
    const at::Tensor own = x * weight_->value.select(1, 0).select(1, before.size(1));
    return at::silu(bias.defined() ? own + bias : own);
  }
  return Convolve::apply(
      x,
      before,
      weight_->value,
      optional(bias),
      optional(documents),
      Convolve::Saved{own_runs(x, context), rows_at_once(context.mode().target)}
  );
}

} // namespace mh::hybrid
