#include "delta_rule.hpp"

#include "chunk_cpu.hpp"
#include "chunks.hpp"
#include "delta_cpu.hpp"

#include <megahost/saved.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

namespace mh::hybrid {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A decay below exp of this is computed as this: no sum shows the difference, and smaller numbers
/// would become denormal ones, with which processors are a hundred times slower.
constexpr double kFaintestDecay = -60;

/// Rows of chunks with those that fill them up to a power of two, as inverse_of_unit wants it.
int64_t padded_rows(const std::vector<TokenRun>& rows) {
  int64_t longest = 1;
  for (const TokenRun& chunk : rows) {
    longest = std::max(longest, chunk.count);
  }
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(longest)));
}

/// A group's rows of x [seq, batch, heads, dim]: [count, batch, heads, rows, dim], no copy
at::Tensor by_chunk(const AlikeChunks& group, const at::Tensor& x) {
  return group.rows_of(x).permute({0, 2, 3, 1, 4});
}

/// Its rows in chunks [chunks, batch, heads, C, dim]: a view [count, batch, heads, rows, dim].
at::Tensor chunks_of(const AlikeChunks& group, const at::Tensor& chunks) {
  return chunks.narrow(0, group.first, group.count).narrow(3, 0, group.rows.count);
}

/// x [seq, batch, heads, dim] -> [chunks, batch, heads, C, dim], zeros behind short chunks.
at::Tensor
rows_to_chunks(const at::Tensor& x, const std::vector<TokenRun>& rows, at::ScalarType type) {
  const int64_t length = padded_rows(rows);
  const auto whole = [length](const TokenRun& chunk) { return chunk.count == length; };
  const std::vector<int64_t> sizes{
      static_cast<int64_t>(rows.size()), x.size(1), x.size(2), length, x.size(3)};
  const auto options = x.options().dtype(type);
  at::Tensor chunks = std::all_of(rows.begin(), rows.end(), whole) ? at::empty(sizes, options)
                                                                   : at::zeros(sizes, options);
  for (const AlikeChunks& group : alike(rows)) {
    chunks_of(group, chunks).copy_(by_chunk(group, x));
  }
  return chunks;
}

/// The opposite: [chunks, batch, heads, C, dim] -> [seq, batch, heads, dim]
at::Tensor
chunks_to_rows(const at::Tensor& chunks, const std::vector<TokenRun>& rows, at::ScalarType type) {
  const int64_t seq = rows.back().first + rows.back().count;
  at::Tensor x = at::empty(
      {seq, chunks.size(1), chunks.size(2), chunks.size(4)}, chunks.options().dtype(type)
  );
  for (const AlikeChunks& group : alike(rows)) {
    by_chunk(group, x).copy_(chunks_of(group, chunks));
  }
  return x;
}

struct ToChunks : torch::autograd::Function<ToChunks> {
  struct Saved {
    std::vector<TokenRun> rows;
    at::ScalarType type;
  };

  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& x,
      const std::vector<TokenRun>& rows,
      at::ScalarType type
  ) {
    save(ctx, Saved{rows, x.scalar_type()});
    return rows_to_chunks(x, rows, type);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const Saved& saved = get_saved<Saved>(ctx);
    return {chunks_to_rows(gradients[0], saved.rows, saved.type), at::Tensor(), at::Tensor()};
  }
};

struct ToRows : torch::autograd::Function<ToRows> {
  struct Saved {
    std::vector<TokenRun> rows;
  };

  static at::Tensor
  forward(AutogradContext* ctx, const at::Tensor& chunks, const std::vector<TokenRun>& rows) {
    save(ctx, Saved{rows});
    return chunks_to_rows(chunks, rows, chunks.scalar_type());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const at::Tensor& dy = gradients[0];
    return {rows_to_chunks(dy, get_saved<Saved>(ctx).rows, dy.scalar_type()), at::Tensor()};
  }
};

/// scale x / sqrt(|x|² + eps), of the last dimension.
struct OfLength : torch::autograd::Function<OfLength> {
  struct Saved {
    double scale;
  };

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, double scale) {
    const at::Tensor factor =
        x.square().sum(-1, /*keepdim=*/true).add_(kLengthEps).rsqrt_().mul_(scale);
    at::Tensor y = x * factor;
    ctx->save_for_backward({y, factor});
    save(ctx, Saved{scale});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &y = saved[0], &factor = saved[1];
    const double scale = get_saved<Saved>(ctx).scale;
    const at::Tensor along = (gradients[0] * y).sum(-1, /*keepdim=*/true).div_(-scale * scale);
    return {along.mul(y).add_(gradients[0]).mul_(factor), at::Tensor()};
  }
};

/// The inverse of 1 + lower, where `lower` has zeros on its diagonal and above: inverses of pairs of
/// neighbouring blocks on the diagonal from those of the blocks, [A 0; B D]⁻¹ = [A⁻¹ 0; -D⁻¹ B A⁻¹
/// D⁻¹]. Powers of `lower`, which would be fewer GEMMs, lose all digits where keys are alike.
///
/// Shapes:  lower [n, C, C], C a power of two -> the same
at::Tensor inverse_of_unit(const at::Tensor& lower) {
  const int64_t n = lower.size(0), size = lower.size(1);
  at::Tensor inverse = at::ones({n * size, 1, 1}, lower.options()); // inverses of blocks of 1
  for (int64_t block = 1; block < size; block *= 2) {
    const int64_t pairs = size / (2 * block), wide = 2 * block;
    const at::Tensor below = lower.view({n, pairs, 2, block, pairs, 2, block})
                                 .select(5, 0)
                                 .select(2, 1)
                                 .diagonal(0, 1, 3) // [n, block, block, pairs]
                                 .permute({0, 3, 1, 2})
                                 .reshape({n * pairs, block, block});
    const at::Tensor blocks = inverse.view({n * pairs, 2, block, block});
    const at::Tensor first = blocks.select(1, 0), second = blocks.select(1, 1);
    at::Tensor wider = at::zeros({n * pairs, wide, wide}, lower.options());
    wider.narrow(1, 0, block).narrow(2, 0, block).copy_(first);
    wider.narrow(1, block, block).narrow(2, block, block).copy_(second);
    wider.narrow(1, block, block)
        .narrow(2, 0, block)
        .copy_(at::bmm(at::bmm(second, below), first).neg_());
    inverse = wider;
  }
  return inverse.view(lower.sizes());
}

/// The decays within chunks, and the order of dimensions in which their GEMMs are: G chunks of
/// samples and key heads, R value heads each.
class Decays {
public:
  /// Args:    since, documents as DeltaChunks has them; key_heads of this rank
  Decays(const at::Tensor& since, const at::Tensor& documents, int64_t key_heads)
      : since_(since.unflatten(2, {key_heads, -1})) { // [N, B, K, R, C]
    if (documents.defined()) {
      documents_ = documents.unsqueeze(2).unsqueeze(2); // [N, B, 1, 1, C]
    }
  }

  /// From each token to the chunk's end: [G, R, C]
  [[nodiscard]] at::Tensor to_end() const {
    const int64_t last = since_.size(-1) - 1;
    at::Tensor left = (since_.narrow(-1, last, 1) - since_).clamp_min_(kFaintestDecay).exp_();
    if (documents_.defined()) {
      left.masked_fill_(documents_.ne(documents_.narrow(-1, last, 1)), 0);
    }
    return left.flatten(0, 2);
  }

  /// From the state before the chunk to each token: [G, R, C]
  [[nodiscard]] at::Tensor from_state() const {
    at::Tensor left = since_.clamp_min(kFaintestDecay).exp_();
    if (documents_.defined()) {
      left.masked_fill_(documents_.gt(0), 0);
    }
    return left.flatten(0, 2);
  }

  /// From token s to token t, 0 where that is earlier: [G, R, C (t), C (s)]
  [[nodiscard]] at::Tensor between() const {
    at::Tensor left = (since_.unsqueeze(-1) - since_.unsqueeze(-2))
                          .clamp_(kFaintestDecay, 0) // at 0 what is earlier
                          .exp_()
                          .tril_();
    if (documents_.defined()) {
      left.masked_fill_(documents_.unsqueeze(-1).ne(documents_.unsqueeze(-2)), 0);
    }
    return left.flatten(0, 2);
  }

private:
  at::Tensor since_, documents_;
};

/// [N, B, K, C, dim] -> [G, C, dim]
at::Tensor key_groups(const at::Tensor& keys) {
  return keys.flatten(0, 2);
}

/// [N, B, H, ...] -> [G * R, ...]
at::Tensor value_heads(const at::Tensor& values) {
  return values.flatten(0, 2);
}

/// Rows of each value head, times those of its key head: [G, C, dim], [G, R, C] -> [G * R, C, dim]
at::Tensor scaled_keys(const at::Tensor& keys, const at::Tensor& factors) {
  return (keys.unsqueeze(1) * factors.unsqueeze(-1)).flatten(0, 1);
}

/// x [G * R, ...] -> [G, R, ...]
at::Tensor by_group(const at::Tensor& x, const at::Tensor& keys) {
  return x.unflatten(0, {keys.size(0), -1});
}

/// Gradients of a product d of keys and decays, times those decays, of the sums of logarithms that
/// they are made of: of row t one way, of row s the other.  [G, R, C, C] -> [G, R, C]
at::Tensor of_since(const at::Tensor& d) {
  return d.sum(-1).sub_(d.sum(-2));
}

/// The triangular system: w and u of all chunks.
///
///   (1 + L) w = beta from_state k,  (1 + L) u = beta v,  L[t, s] = beta[t] between[t, s] k[t]·k[s]
struct Solve : torch::autograd::Function<Solve> {
  static variable_list forward(
      AutogradContext* ctx,
      const at::Tensor& k,
      const at::Tensor& v,
      const at::Tensor& beta,
      const at::Tensor& since,
      const std::optional<at::Tensor>& documents
  ) {
    const at::Tensor all_documents = documents.value_or(at::Tensor());
    const Decays decays(since, all_documents, k.size(2));
    const at::Tensor keys = key_groups(k), betas = by_group(value_heads(beta), keys);
    const at::Tensor lower = decays.between()
                                 .mul_(at::bmm(keys, keys.transpose(1, 2)).unsqueeze(1))
                                 .mul_(betas.unsqueeze(-1))
                                 .tril_(-1);
    const at::Tensor inverse = inverse_of_unit(lower.flatten(0, 1)); // [G * R, C, C]
    const at::Tensor w = at::bmm(inverse, scaled_keys(keys, decays.from_state().mul_(betas)));
    const at::Tensor u = at::bmm(inverse, value_heads(v * beta.unsqueeze(-1)));
    std::vector<int64_t> sizes = v.sizes().vec();
    sizes.back() = k.size(-1);
    const variable_list made{w.view(sizes), u.view(v.sizes())};
    ctx->save_for_backward({k, v, beta, since, all_documents, inverse, made[0], made[1]});
    return made;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &k = saved[0], &v = saved[1], &beta = saved[2], &inverse = saved[5];
    const Decays decays(saved[3], saved[4], k.size(2));
    const at::Tensor keys = key_groups(k), betas = by_group(value_heads(beta), keys);

    // The right sides: beta from_state k, and beta v.
    const at::Tensor dw = at::bmm(inverse.transpose(1, 2), value_heads(gradients[0].contiguous()));
    const at::Tensor du = at::bmm(inverse.transpose(1, 2), value_heads(gradients[1].contiguous()));
    const at::Tensor from_state = decays.from_state();
    const at::Tensor read = (by_group(dw, keys) * keys.unsqueeze(1)).sum(-1).mul_(from_state);
    at::Tensor dsince = read * betas; // [G, R, C]
    at::Tensor dk = (by_group(dw, keys) * (from_state * betas).unsqueeze(-1)).sum(1);
    at::Tensor dv = du.view(v.sizes()) * beta.unsqueeze(-1);
    at::Tensor dbeta = by_group((du * value_heads(v)).sum(-1), keys).add_(read);

    // The matrix: L = beta between (k kᵀ).
    at::Tensor dlower = at::bmm(dw, value_heads(saved[6]).transpose(1, 2));
    dlower.baddbmm_(du, value_heads(saved[7]).transpose(1, 2)).neg_();
    at::Tensor dscores = by_group(dlower, keys).mul_(decays.between()).tril_(-1);
    const at::Tensor product = dscores * at::bmm(keys, keys.transpose(1, 2)).unsqueeze(1);
    dbeta.add_(product.sum(-1));
    dsince.add_(of_since(product.mul_(betas.unsqueeze(-1))));
    const at::Tensor of_scores = dscores.mul_(betas.unsqueeze(-1)).sum(1); // [G, C, C]
    dk.baddbmm_(of_scores, keys).baddbmm_(of_scores.transpose(1, 2), keys);
    return {
        dk.view(k.sizes()), dv, dbeta.view(beta.sizes()), dsince.view(beta.sizes()), at::Tensor()};
  }
};

/// How chunks change the state: to_end kᵀ (u - w S) is added to what is left of S.
struct Transitions : torch::autograd::Function<Transitions> {
  static variable_list forward(
      AutogradContext* ctx,
      const at::Tensor& k,
      const at::Tensor& since,
      const std::optional<at::Tensor>& documents,
      const at::Tensor& w,
      const at::Tensor& u
  ) {
    const at::Tensor all_documents = documents.value_or(at::Tensor());
    const Decays decays(since, all_documents, k.size(2));
    const at::Tensor written = scaled_keys(key_groups(k), decays.to_end()).transpose(1, 2);
    const at::Tensor transitions = at::bmm(written, value_heads(w)).neg_();
    transitions.diagonal(0, 1, 2).add_(decays.from_state().select(-1, -1).reshape({-1, 1}));
    const at::Tensor updates = at::bmm(written, value_heads(u));
    ctx->save_for_backward({k, since, all_documents, w, u});
    const auto like = [&w](const at::Tensor& x) { // [G * R, ...] -> [N, B, H, ...]
      return x.view({w.size(0), w.size(1), w.size(2), x.size(1), x.size(2)});
    };
    return {like(transitions), like(updates)};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &k = saved[0], &since = saved[1], &w = saved[3], &u = saved[4];
    const Decays decays(since, saved[2], k.size(2));
    const at::Tensor keys = key_groups(k), to_end = decays.to_end();
    const at::Tensor written = scaled_keys(keys, to_end);
    const at::Tensor dtransitions = value_heads(gradients[0].contiguous());
    const at::Tensor dupdates = value_heads(gradients[1].contiguous());
    at::Tensor dw = at::bmm(written, dtransitions).neg_();
    at::Tensor du = at::bmm(written, dupdates);
    at::Tensor dwritten = at::bmm(value_heads(w), dtransitions.transpose(1, 2)).neg_();
    dwritten.baddbmm_(value_heads(u), dupdates.transpose(1, 2));
    const at::Tensor by_keys = by_group(dwritten, keys).mul_(to_end.unsqueeze(-1));
    at::Tensor dsince = (by_keys * keys.unsqueeze(1)).sum(-1).neg_(); // [G, R, C]
    const at::Tensor left = decays.from_state().select(-1, -1);       // [G, R], on the diagonal
    const at::Tensor dleft = dtransitions.diagonal(0, 1, 2).sum(-1).view(left.sizes());
    dsince.select(-1, -1).sub_(dsince.sum(-1)).add_(dleft.mul_(left));
    return {
        by_keys.sum(1).view(k.sizes()),
        dsince.view(since.sizes()),
        at::Tensor(),
        dw.view(w.sizes()),
        du.view(u.sizes())};
  }
};

/// y = from_state q S + (between (q kᵀ)) (u - w S).
struct Outputs : torch::autograd::Function<Outputs> {
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& q,
      const at::Tensor& k,
      const at::Tensor& since,
      const std::optional<at::Tensor>& documents,
      const at::Tensor& w,
      const at::Tensor& u,
      const at::Tensor& states
  ) {
    const at::Tensor all_documents = documents.value_or(at::Tensor());
    const Decays decays(since, all_documents, k.size(2));
    const at::Tensor queries = key_groups(q), state = value_heads(states);
    const at::Tensor scores = at::bmm(queries, key_groups(k).transpose(1, 2)); // [G, C, C]
    const at::Tensor matrix = decays.between().mul_(scores.unsqueeze(1)).flatten(0, 1);
    at::Tensor y = at::bmm(matrix, writes(w, u, state));
    y.baddbmm_(scaled_keys(queries, decays.from_state()), state);
    ctx->save_for_backward({q, k, since, all_documents, w, u, states});
    return y.view(u.sizes());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &since = saved[2];
    const at::Tensor &w = saved[4], &u = saved[5], &states = saved[6];
    const Decays decays(since, saved[3], k.size(2));
    const at::Tensor queries = key_groups(q), keys = key_groups(k), state = value_heads(states);
    const at::Tensor dy = value_heads(gradients[0].contiguous());

    // Through the matrix of the chunk.
    at::Tensor dscores = at::bmm(dy, writes(w, u, state).transpose(1, 2));
    const at::Tensor between = decays.between();
    dscores = by_group(dscores, keys).mul_(between);
    const at::Tensor matrix = // [G, R, C, C]
        between.mul_(at::bmm(queries, keys.transpose(1, 2)).unsqueeze(1));
    at::Tensor du = at::bmm(matrix.flatten(0, 1).transpose(1, 2), dy);
    at::Tensor dw = at::bmm(du, state.transpose(1, 2)).neg_();
    const at::Tensor of_scores = dscores.sum(1); // [G, C, C]
    at::Tensor dk = at::bmm(of_scores.transpose(1, 2), queries);
    at::Tensor dq = at::bmm(of_scores, keys);
    dscores.mul_(at::bmm(queries, keys.transpose(1, 2)).unsqueeze(1));
    at::Tensor dsince = of_since(dscores);

    // Through the state before the chunk.
    const at::Tensor from_state = decays.from_state();
    at::Tensor dstate = at::bmm(scaled_keys(queries, from_state).transpose(1, 2), dy);
    dstate.baddbmm_(value_heads(w).transpose(1, 2), du, 1, -1);
    const at::Tensor dread =
        by_group(at::bmm(dy, state.transpose(1, 2)), keys).mul_(from_state.unsqueeze(-1));
    dq.add_(dread.sum(1));
    dsince.add_((dread * queries.unsqueeze(1)).sum(-1));
    return {
        dq.view(q.sizes()),
        dk.view(k.sizes()),
        dsince.view(since.sizes()),
        at::Tensor(),
        dw.view(w.sizes()),
        du.view(u.sizes()),
        dstate.view(states.sizes())};
  }

private:
  /// The tokens write u - w S.  [G * R, C, value dim]
  static at::Tensor writes(const at::Tensor& w, const at::Tensor& u, const at::Tensor& state) {
    return at::baddbmm(value_heads(u), value_heads(w), state, 1, -1);
  }
};

/// A number of each head, [seq, batch, heads] -> [chunks, batch, heads, C]
at::Tensor numbers_to_chunks(const at::Tensor& x, const std::vector<TokenRun>& rows) {
  return ToChunks::apply(x.unsqueeze(-1), rows, x.scalar_type()).squeeze(-1);
}

double query_scale(const at::Tensor& q) {
  return 1 / std::sqrt(static_cast<double>(q.size(-1)));
}

} // namespace

DeltaChunks delta_chunks(const DeltaInputs& in, const std::vector<TokenRun>& rows) {
  if (fits_cpu_delta(in)) {
    return cpu_delta_chunks(in, rows);
  }
  const auto wide = in.beta.scalar_type();
  DeltaChunks made;
  made.q = OfLength::apply(ToChunks::apply(in.q, rows, wide), query_scale(in.q));
  made.k = OfLength::apply(ToChunks::apply(in.k, rows, wide), 1.0);
  made.since = numbers_to_chunks(in.log_decay, rows).cumsum(-1);
  if (in.starts.defined()) {
    const at::Tensor starts = in.starts.unsqueeze(-1).unsqueeze(-1);
    made.documents = rows_to_chunks(starts, rows, at::kInt).select(-1, 0).select(2, 0).cumsum(-1);
  }
  const auto documents = if_defined(made.documents);
  const at::Tensor v = ToChunks::apply(in.v, rows, wide);
  const auto solved =
      Solve::apply(made.k, v, numbers_to_chunks(in.beta, rows), made.since, documents);
  made.w = solved[0];
  made.u = solved[1];
  const auto changes = Transitions::apply(made.k, made.since, documents, made.w, made.u);
  made.transitions = changes[0];
  made.updates = changes[1];
  return made;
}

at::Tensor
delta_outputs(const DeltaChunks& of, const at::Tensor& states, const std::vector<TokenRun>& rows) {
  if (of.solved.defined()) {
    return cpu_delta_outputs(of, states, rows);
  }
  const at::Tensor y =
      Outputs::apply(of.q, of.k, of.since, if_defined(of.documents), of.w, of.u, states);
  return ToRows::apply(y, rows);
}

at::Tensor delta_alone(const DeltaInputs& in) {
  const auto wide = in.beta.scalar_type();
  const at::Tensor q = OfLength::apply(in.q.to(wide), query_scale(in.q));
  const at::Tensor k = OfLength::apply(in.k.to(wide), 1.0);
  const int64_t heads = in.v.size(2) / k.size(2); // value heads of each key head
  const at::Tensor read = (q * k).sum(-1).repeat_interleave(heads, 2) * in.beta;
  return read.unsqueeze(-1) * in.v.to(wide);
}

} // namespace mh::hybrid
