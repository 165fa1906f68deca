#include "megahost/nn/tokens_before.hpp"

#include "megahost/error.hpp"
#include "megahost/nn/attention.hpp"
#include "megahost/random.hpp"
#include "megahost/saved.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

namespace mh {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Tokens of a sample, and where their rows begin in some tensor.
struct Rows {
  TokenRun tokens;
  int64_t row = 0;
};

/// Pieces [begin, end) of runs laid one behind the other.
std::vector<TokenRun> cut(const std::vector<TokenRun>& runs, int64_t begin, int64_t end) {
  std::vector<TokenRun> pieces;
  int64_t row = 0;
  for (const TokenRun& run : runs) {
    const int64_t first = std::max(begin, row), last = std::min(end, row + run.count);
    if (first < last) {
      pieces.push_back({run.first + first - row, last - first});
    }
    row += run.count;
  }
  return pieces;
}

int64_t count_of(const std::vector<TokenRun>& runs) {
  int64_t count = 0;
  for (const TokenRun& run : runs) {
    count += run.count;
  }
  return count;
}

/// The rows of runs that lie one behind the other, from `row` on.
std::vector<Rows> laid_out(const std::vector<TokenRun>& runs, int64_t row = 0) {
  std::vector<Rows> rows;
  for (const TokenRun& run : runs) {
    rows.push_back({run, row});
    row += run.count;
  }
  return rows;
}

/// The tokens of a sample that each rank holds, and the rows that ranks send one another.
class RowSplit {
public:
  /// The split of activations that are placed as `placed`.
  RowSplit(
      const Rules& rules, const Mesh& mesh, const Placement& placed, int64_t seq, int64_t count
  )
      : mesh_(mesh) {
    constexpr Along kSplit{PlacementType::split, 0};
    for (const auto axis : kAllMeshAxes) {
      if (mesh.size(axis) > 1 && placed[axis] == kSplit) {
        from_[axis] = kSplit;
        to_[axis] = {PlacementType::replicated, 0};
      }
    }
    const auto rule = std::find_if(rules.tokens.begin(), rules.tokens.end(), [&](const Rule& r) {
      return r.logical == axis::seq && from_[r.mesh] == kSplit;
    });
    const bool sharded = rule != rules.tokens.end();
    std::optional<MeshAxis> inner; // cuts what the rule gives a rank into blocks
    for (const auto axis : kAllMeshAxes) {
      if (from_[axis] == kSplit && !(sharded && axis == rule->mesh)) {
        MH_ASSERT(!inner, "at most two mesh axes split the tokens of a sample");
        inner = axis;
      }
    }
    const int64_t outer_ranks = sharded ? mesh.size(rule->mesh) : 1;
    const int64_t inner_ranks = inner ? mesh.size(*inner) : 1;
    std::vector<std::vector<TokenRun>> held; // by each rank, in the order of gathers
    for (int64_t outer = 0; outer < outer_ranks; ++outer) {
      const std::vector<TokenRun> runs = sharded
                                             ? sharded_runs(rule->sharding, seq, outer_ranks, outer)
                                             : std::vector<TokenRun>{{0, seq}};
      const int64_t part = count_of(runs) / inner_ranks;
      for (int64_t i = 0; i < inner_ranks; ++i) {
        held.push_back(cut(runs, i * part, (i + 1) * part));
      }
    }
    const int64_t own_inner = inner ? mesh.coordinate(*inner) : 0;
    const int64_t own_outer = sharded ? mesh.coordinate(rule->mesh) : 0;
    own_ = laid_out(held[static_cast<size_t>(own_outer * inner_ranks + own_inner)]);
    first_row_ = own_inner * count_of(held.front());
    if (held.size() == 1) {
      return;
    }
    ranks_ = static_cast<int64_t>(held.size());
    for (const auto& runs : held) {
      sent_rows_ = std::max(sent_rows_, count_of(tails(runs, count)));
    }
    for (size_t rank = 0; rank < held.size(); ++rank) {
      const auto rows = laid_out(tails(held[rank], count), static_cast<int64_t>(rank) * sent_rows_);
      others_.insert(others_.end(), rows.begin(), rows.end());
    }
    for (const Rows& rows : own_) {
      const int64_t some = std::min(rows.tokens.count, count);
      sent_.push_back({{rows.tokens.first, some}, rows.row + rows.tokens.count - some});
    }
  }

  [[nodiscard]] const std::vector<Rows>& own() const { return own_; }

  [[nodiscard]] int64_t own_rows() const {
    return std::accumulate(own_.begin(), own_.end(), int64_t{0}, [](int64_t sum, const Rows& rows) {
      return sum + rows.tokens.count;
    });
  }

  /// The last rows of runs of all ranks, as `gather` lays them out.
  [[nodiscard]] const std::vector<Rows>& others() const { return others_; }

  [[nodiscard]] int64_t gathered_rows() const { return ranks_ * sent_rows_; }

  /// The first of this rank's rows in arrays of the batch, which only strategies of tokens split.
  [[nodiscard]] int64_t first_row() const { return first_row_; }

  /// The rows that are sent of all ranks: [ranks * rows, ...]; undefined on one rank.
  [[nodiscard]] at::Tensor gather(const at::Tensor& x) const {
    if (others_.empty()) {
      return {};
    }
    std::vector<at::Tensor> parts;
    int64_t rows = 0;
    for (const Rows& sent : sent_) {
      parts.push_back(x.narrow(0, sent.row, sent.tokens.count));
      rows += sent.tokens.count;
    }
    if (rows < sent_rows_) { // as many as the others send
      auto sizes = x.sizes().vec();
      sizes[0] = sent_rows_ - rows;
      parts.push_back(at::zeros(sizes, x.options()));
    }
    return convert_forward(at::cat(parts), from_, to_, mesh_);
  }

  /// Adds to the gradient of x what the gradient of all that was gathered says, on every rank.
  void add_gathered(const at::Tensor& gradient, const at::Tensor& ret_dx) const {
    const at::Tensor own = convert_backward(gradient, from_, to_, mesh_);
    int64_t row = 0;
    for (const Rows& sent : sent_) {
      ret_dx.narrow(0, sent.row, sent.tokens.count).add_(own.narrow(0, row, sent.tokens.count));
      row += sent.tokens.count;
    }
  }

private:
  static std::vector<TokenRun> tails(const std::vector<TokenRun>& runs, int64_t count) {
    std::vector<TokenRun> last;
    for (const TokenRun& run : runs) {
      const int64_t some = std::min(run.count, count);
      last.push_back({run.first + run.count - some, some});
    }
    return last;
  }

  const Mesh& mesh_;
  Placement from_, to_;
  std::vector<Rows> own_, sent_, others_;
  int64_t ranks_ = 1, sent_rows_ = 0, first_row_ = 0;
};

/// The rows among `all` that begin with this token, at most `most`; none if it is not there.
Rows beginning_with(const std::vector<Rows>& all, int64_t token, int64_t most) {
  for (const auto& [tokens, row] : all) {
    const int64_t in = token - tokens.first;
    if (in >= 0 && in < tokens.count) {
      return {{token, std::min(most, tokens.count - in)}, row + in};
    }
  }
  return {};
}

/// The places of the rows `back` tokens before each own token, piece by piece in the order of own
/// rows.
struct PastRows {
  enum class Of : uint8_t { nothing, own, others } of;
  int64_t row, count;
};

/// The rows of at most so many tokens from `token` on, which is none before the sample.
PastRows source_of(const RowSplit& split, int64_t token, int64_t most) {
  const Rows here = beginning_with(split.own(), token, most);
  const Rows there = beginning_with(split.others(), token, most);
  const bool own_row = here.tokens.count > 0;
  const Rows& found = own_row ? here : there;
  MH_ASSERT(found.tokens.count > 0, "some rank sends the rows before a run");
  return {own_row ? PastRows::Of::own : PastRows::Of::others, found.row, found.tokens.count};
}

std::vector<PastRows> sources(const RowSplit& split, int64_t back) {
  std::vector<PastRows> pieces;
  for (const Rows& own : split.own()) {
    const int64_t end = own.tokens.first + own.tokens.count - back;
    for (int64_t token = own.tokens.first - back; token < end; token += pieces.back().count) {
      if (token < 0) {
        pieces.push_back({PastRows::Of::nothing, 0, std::min<int64_t>(-token, end - token)});
        continue;
      }
      pieces.push_back(source_of(split, token, end - token));
    }
  }
  return pieces;
}

/// Row i is that of the token `back` before own token i; zeros before the sample.
at::Tensor
shifted(const RowSplit& split, const at::Tensor& x, const at::Tensor& others, int64_t back) {
  std::vector<at::Tensor> parts;
  for (const PastRows& piece : sources(split, back)) {
    if (piece.of == PastRows::Of::nothing) {
      auto sizes = x.sizes().vec();
      sizes[0] = piece.count;
      parts.push_back(at::zeros(sizes, x.options()));
    } else {
      const at::Tensor& from = piece.of == PastRows::Of::own ? x : others;
      parts.push_back(from.narrow(0, piece.row, piece.count));
    }
  }
  return at::cat(parts);
}

/// One node of the graph, so that every rank takes part in the backward pass's collective, whether
/// or not it reads a row of another.
struct LookBack : torch::autograd::Function<LookBack> {
  struct Saved {
    std::shared_ptr<const RowSplit> split;
  };

  static variable_list forward(
      AutogradContext* ctx,
      const at::Tensor& x,
      const std::shared_ptr<const RowSplit>& split,
      int64_t count
  ) {
    save(ctx, Saved{split});
    const at::Tensor others = split->gather(x);
    variable_list before;
    for (int64_t back = 1; back <= count; ++back) {
      before.push_back(shifted(*split, x, others, back));
    }
    return before;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const RowSplit& split = *get_saved<Saved>(ctx).split;
    at::Tensor dx = at::zeros_like(gradients.front());
    at::Tensor gathered; // the gradient of others' rows
    if (!split.others().empty()) {
      auto sizes = dx.sizes().vec();
      sizes[0] = split.gathered_rows();
      gathered = at::zeros(sizes, dx.options());
    }
    for (size_t i = 0; i < gradients.size(); ++i) {
      int64_t row = 0;
      for (const PastRows& piece : sources(split, static_cast<int64_t>(i) + 1)) {
        if (piece.of != PastRows::Of::nothing) {
          const at::Tensor& to = piece.of == PastRows::Of::own ? dx : gathered;
          to.narrow(0, piece.row, piece.count).add_(gradients[i].narrow(0, row, piece.count));
        }
        row += piece.count;
      }
    }
    if (gathered.defined()) {
      split.add_gathered(gathered, dx);
    }
    return {dx, at::Tensor(), at::Tensor()};
  }
};

/// The rows of the tokens before each own run, the nearest last.
struct BeforeRuns : torch::autograd::Function<BeforeRuns> {
  struct Saved {
    std::shared_ptr<const RowSplit> split;
    std::vector<int64_t> sizes; // sizes of x
  };

  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& x,
      const std::shared_ptr<const RowSplit>& split,
      int64_t count
  ) {
    save(ctx, Saved{split, x.sizes().vec()});
    const at::Tensor others = split->gather(x);
    auto sizes = x.sizes().vec();
    sizes[0] = count;
    sizes.insert(sizes.begin(), static_cast<int64_t>(split->own().size()));
    at::Tensor before = at::zeros(sizes, x.options());
    each_row(*split, count, [&](int64_t run, int64_t row, const PastRows& source) {
      const at::Tensor& from = source.of == PastRows::Of::own ? x : others;
      before[run][row].copy_(from[source.row]);
    });
    return before;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto& [split, sizes] = get_saved<Saved>(ctx);
    const at::Tensor dx = at::zeros(sizes, gradients[0].options());
    auto all = sizes;
    all[0] = split->gathered_rows();
    const at::Tensor gathered = at::zeros(all, gradients[0].options());
    each_row(*split, gradients[0].size(1), [&](int64_t run, int64_t row, const PastRows& source) {
      const at::Tensor& to = source.of == PastRows::Of::own ? dx : gathered;
      to[source.row].add_(gradients[0][run][row]);
    });
    split->add_gathered(gathered, dx);
    return {dx, at::Tensor(), at::Tensor()};
  }

private:
  /// Calls `visit` with a run, the place of a row before it and where that row is, but for rows
  /// before the sample.
  template <class Visit>
  static void each_row(const RowSplit& split, int64_t count, const Visit& visit) {
    for (size_t run = 0; run < split.own().size(); ++run) {
      for (int64_t row = 0; row < count; ++row) {
        const int64_t token = split.own()[run].tokens.first - count + row;
        if (token >= 0) {
          visit(static_cast<int64_t>(run), row, source_of(split, token, /*most=*/1));
        }
      }
    }
  }
};

/// The rows that `RowSplit::gather` laid out, in the order of tokens: [seq, ...]
at::Tensor in_order(const RowSplit& split, const at::Tensor& gathered) {
  std::vector<Rows> rows = split.others();
  std::sort(rows.begin(), rows.end(), [](const Rows& a, const Rows& b) {
    return a.tokens.first < b.tokens.first;
  });
  std::vector<at::Tensor> parts;
  for (const auto& [tokens, row] : rows) {
    parts.push_back(gathered.narrow(0, row, tokens.count));
  }
  return at::cat(parts);
}

/// The rows of all ranks, which send all that they have.
struct GatherAll : torch::autograd::Function<GatherAll> {
  struct Saved {
    std::shared_ptr<const RowSplit> split;
  };

  static at::Tensor
  forward(AutogradContext* ctx, const at::Tensor& x, const std::shared_ptr<const RowSplit>& split) {
    save(ctx, Saved{split});
    return in_order(*split, split->gather(x));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const RowSplit& split = *get_saved<Saved>(ctx).split;
    auto sizes = gradients[0].sizes().vec();
    sizes[0] = split.gathered_rows();
    const at::Tensor gathered = at::zeros(sizes, gradients[0].options());
    for (const auto& [tokens, row] : split.others()) {
      gathered.narrow(0, row, tokens.count)
          .copy_(gradients[0].narrow(0, tokens.first, tokens.count));
    }
    sizes[0] = split.own_rows();
    const at::Tensor dx = at::zeros(sizes, gradients[0].options());
    split.add_gathered(gathered, dx);
    return {dx, at::Tensor()};
  }
};

std::shared_ptr<const RowSplit> whole_split(Axis last, StepContext& context) {
  const int64_t seq = context.seq();
  return std::make_shared<const RowSplit>(
      context.rules(), context.mesh(), context.place(last), seq, /*count=*/seq
  );
}

} // namespace

TokensBefore::TokensBefore(Builder& builder, std::string_view name, Axis last, int64_t count)
    : site_(random_key(0, builder.global_name(name)))
    , last_(last)
    , count_(count) {
  MH_ASSERT(count >= 1, "a layer looks back by at least one token");
}

std::vector<at::Tensor> TokensBefore::forward(const at::Tensor& x, StepContext& context) const {
  if (context.mode().tokens_apart) {
    return std::vector<at::Tensor>(static_cast<size_t>(count_), x * 0); // NaN of its own token stay
  }
  std::vector<at::Tensor> before;
  if (context.mode().kv_cache != nullptr) { // one rank, one document
    const at::Tensor all = context.mode().kv_cache->rows(site_, x, count_);
    for (int64_t back = 1; back <= count_; ++back) {
      before.push_back(all.narrow(0, count_ - back, x.size(0)));
    }
    return before;
  }
  const auto split = std::make_shared<const RowSplit>(
      context.rules(), context.mesh(), context.place(last_), context.seq(), count_
  );
  before = LookBack::apply(x, split, count_);
  if (!context.segments()) {
    return before;
  }
  const std::string key =
      "another document " + std::to_string(split->first_row()) + " " + std::to_string(count_);
  at::Tensor other = context.cached(key, [&] { // [count, seq, batch]
    const at::NoGradGuard no_grad;
    const at::Tensor own = context.segments()->narrow(0, split->first_row(), x.size(0));
    const at::Tensor others = split->gather(own);
    std::vector<at::Tensor> masks;
    for (int64_t back = 1; back <= count_; ++back) {
      masks.push_back(shifted(*split, own, others, back).ne(own));
    }
    return at::stack(masks);
  });
  while (other.dim() <= x.dim()) {
    other = other.unsqueeze(-1);
  }
  for (int64_t i = 0; i < count_; ++i) {
    at::Tensor& rows = before[static_cast<size_t>(i)];
    rows = rows.masked_fill(other.select(0, i), 0);
  }
  return before;
}

at::Tensor TokensBefore::before_runs(const at::Tensor& x, StepContext& context) const {
  if (context.mode().kv_cache != nullptr &&
      !context.mode().tokens_apart) { // one rank, one document
    return context.mode().kv_cache->rows(site_, x, count_).narrow(0, 0, count_).unsqueeze(0);
  }
  const auto split = std::make_shared<const RowSplit>(
      context.rules(), context.mesh(), context.place(last_), context.seq(), count_
  );
  if (context.mode().tokens_apart || split->others().empty()) {
    auto sizes = x.sizes().vec();
    sizes[0] = count_;
    sizes.insert(sizes.begin(), static_cast<int64_t>(split->own().size()));
    return at::zeros(sizes, x.options());
  }
  return BeforeRuns::apply(x, split, count_);
}

std::vector<TokenRun> own_runs(const at::Tensor& x, StepContext& context) {
  if (context.mode().kv_cache != nullptr) {
    return {{0, x.size(0)}};
  }
  auto runs = context.rules().token_runs(context.seq(), context.mesh());
  MH_ASSERT(count_of(runs) == x.size(0), "activations are split over ranks as arrays are");
  return runs;
}

at::Tensor AllTokens::gather(const at::Tensor& x, StepContext& context) const {
  if (context.mode().kv_cache != nullptr) {
    throw Error(
        "a layer that mixes whole samples (AllTokens) was given new tokens alone",
        "its block must not say that it reads_cache"
    );
  }
  if (context.mode().tokens_apart) {
    auto sizes = x.sizes().vec();
    sizes[0] = context.seq();
    return at::zeros(sizes, x.options());
  }
  const auto split = whole_split(last_, context);
  return split->others().empty() ? x : GatherAll::apply(x, split);
}

at::Tensor AllTokens::segments(StepContext& context) const {
  if (!context.segments()) {
    return {};
  }
  const auto split = whole_split(last_, context);
  const at::Tensor held = *context.segments();
  if (split->others().empty()) {
    return held;
  }
  const std::string key = "segments of all tokens " + std::to_string(split->first_row());
  return context.cached(key, [&] {
    const at::NoGradGuard no_grad;
    return in_order(*split, split->gather(held.narrow(0, split->first_row(), split->own_rows())));
  });
}

at::Tensor AllTokens::own(const at::Tensor& whole, StepContext& context) const {
  const auto split = whole_split(last_, context);
  if (split->others().empty()) {
    return whole;
  }
  std::vector<at::Tensor> parts;
  for (const Rows& rows : split->own()) {
    parts.push_back(whole.narrow(0, rows.tokens.first, rows.tokens.count));
  }
  return at::cat(parts);
}

} // namespace mh
