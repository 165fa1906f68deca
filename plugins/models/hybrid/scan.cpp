#include "scan.hpp"

#include "chunk_cpu.hpp"
#include "scan_cpu.hpp"

#include <megahost/saved.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <optional>

namespace mh::hybrid {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kInputs = 6; // tensors in ScanInputs

/// Less than exp of this is left of nothing: it is lost in any sum, and smaller numbers would become
/// denormal ones, with which processors are a hundred times slower.
constexpr double kFaintest = -60;

/// Sums of a row and all behind it.
at::Tensor sums_from_behind(const at::Tensor& x) {
  return x.flip(0).cumsum(0).flip(0);
}

/// Decays between two tokens of a chunk that are computed at once: 64 MB of them in float32.
constexpr int64_t kDecaysAtOnce = 1 << 24;

std::vector<AlikeChunks>
computed_at_once(const ScanInputs& in, const std::vector<TokenRun>& chunks) {
  return alike(chunks, kDecaysAtOnce / (in.dt.size(1) * in.dt.size(2)));
}

/// Chunks of the inputs that are computed at once, as if they were further samples: Q tokens of B
/// samples of chunks; H heads of P elements in G groups, R heads each; N numbers of state. Matrices
/// are one behind the other: [B * H, ...] or [B * G, ...].
class ScanChunks {
public:
  ScanChunks(const ScanInputs& in, const AlikeChunks& group)
      : group_(group)
      , dt(of(in.dt))
      , x(wide(in.x))
      , xdt(x * dt.unsqueeze(-1))
      , b(of_groups(in.b))
      , c(of_groups(in.c))
      , since(of(in.log_decay).cumsum(0)) {
    if (in.starts.defined()) {
      documents = of(in.starts).cumsum(0);
    }
  }

private:
  AlikeChunks group_;

public:
  at::Tensor dt;        // [Q, B, H]
  at::Tensor x, xdt;    // [Q, B, H, P]
  at::Tensor b, c;      // [B * G, Q, N]
  at::Tensor since;     // [Q, B, H]: logarithms of the decays from the chunk's beginning on
  at::Tensor documents; // [Q, B]: how many began in the chunk so far; undefined: none

  /// The chunks' rows of a tensor: [seq, samples, ...] -> [Q, B, ...]
  [[nodiscard]] at::Tensor of(const at::Tensor& all) const { return of(all, all.scalar_type()); }

  /// [Q, B, ...] -> rows of a tensor [seq, samples, ...]
  void put(const at::Tensor& all, const at::Tensor& values) const {
    rows_of(all).copy_(values.unflatten(1, {group_.count, all.size(1)}));
  }

  /// The chunks' matrices or numbers of a tensor: [chunks, samples, ...] -> [B, ...], no copy
  [[nodiscard]] at::Tensor each_of(const at::Tensor& all) const {
    return all.narrow(0, group_.first, group_.count).flatten(0, 1);
  }

  [[nodiscard]] int64_t groups() const { return b.size(0); }

  /// [Q, B, H, P] -> [B * H, Q, P], no copy
  [[nodiscard]] static at::Tensor by_head(const at::Tensor& values) {
    return values.flatten(1, 2).transpose(0, 1);
  }

  /// [Q, B, H, P] -> [B * G, Q, R * P], no copy
  [[nodiscard]] at::Tensor by_group(const at::Tensor& values) const {
    return values.view({values.size(0), groups(), -1}).transpose(0, 1);
  }

  /// [B, H, P, N] -> [B * G, R * P, N], no copy
  [[nodiscard]] at::Tensor state_by_group(const at::Tensor& state) const {
    return state.view({groups(), -1, state.size(-1)});
  }

  /// [B * G, Q, N] -> rows of a gradient [seq, B, G, N]
  void write(const at::Tensor& all, const at::Tensor& gradient) const {
    put(all, gradient.transpose(0, 1).unflatten(1, {-1, all.size(2)}));
  }

  /// The decay of each token until the chunk's end: [Q, B, H]
  [[nodiscard]] at::Tensor to_end() const {
    const at::Tensor left = (since[-1] - since).clamp_min_(kFaintest).exp_();
    return documents.defined() ? left.masked_fill_(documents.ne(documents[-1]).unsqueeze(-1), 0)
                               : left;
  }

  /// The decay of the state before the chunk until each token: [Q, B, H]
  [[nodiscard]] at::Tensor from_state() const {
    const at::Tensor left = since.clamp_min(kFaintest).exp_();
    return documents.defined() ? left.masked_fill_(documents.gt(0).unsqueeze(-1), 0) : left;
  }

  /// The decay of token s until token t, 0 where that is earlier: [B * H, Q (t), Q (s)]
  [[nodiscard]] at::Tensor between() const {
    const at::Tensor by_heads = since.flatten(1).t(); // [B * H, Q]
    at::Tensor left = (by_heads.unsqueeze(2) - by_heads.unsqueeze(1))
                          .clamp_(kFaintest, 0) // at 0 what is earlier
                          .exp_()
                          .tril_();
    if (documents.defined()) {
      const at::Tensor by_sample = documents.t(); // [B, Q]
      const at::Tensor others = by_sample.unsqueeze(2).ne(by_sample.unsqueeze(1)).unsqueeze(1);
      left.view({by_sample.size(0), -1, left.size(1), left.size(2)}).masked_fill_(others, 0);
    }
    return left;
  }

  /// One matrix for each head: [B * H, Q, Q] -> [B, G, R, Q, Q] as [B * G, R, Q, Q], no copy
  [[nodiscard]] at::Tensor heads_of_groups(const at::Tensor& matrices) const {
    return matrices.view({groups(), -1, matrices.size(1), matrices.size(2)});
  }

private:
  /// [seq, samples, ...] -> [Q, chunks, samples, ...], no copy
  [[nodiscard]] at::Tensor rows_of(const at::Tensor& all) const {
    return group_.rows_of(all).transpose(0, 1);
  }

  [[nodiscard]] at::Tensor of(const at::Tensor& all, at::ScalarType type) const {
    const at::Tensor rows = rows_of(all);
    return at::empty(rows.sizes(), all.options().dtype(type)).copy_(rows).flatten(1, 2);
  }

  [[nodiscard]] at::Tensor wide(const at::Tensor& all) const { return of(all, dt.scalar_type()); }

  [[nodiscard]] at::Tensor of_groups(const at::Tensor& all) const {
    return wide(all).flatten(1, 2).transpose(0, 1);
  }
};

/// Gradients of the inputs that a Function reads, of `in`'s shapes and dtypes.
ScanInputs gradients_of(const ScanInputs& in) {
  const auto like = [](const at::Tensor& x) {
    return at::empty_like(x, at::MemoryFormat::Contiguous);
  };
  return {like(in.x), like(in.dt), like(in.log_decay), like(in.b), like(in.c), {}, in.target};
}

/// The four functions of scan_cpu.hpp, made of LibTorch's operations: for float64, and for other
/// devices.
void plain_updates(
    const ScanInputs& in,
    const std::vector<TokenRun>& chunks,
    const at::Tensor& decays,
    const at::Tensor& updates
) {
  for (const AlikeChunks& group : computed_at_once(in, chunks)) {
    const ScanChunks chunk(in, group);
    chunk.each_of(decays).copy_(chunk.from_state()[-1]);
    const at::Tensor left = chunk.xdt * chunk.to_end().unsqueeze(-1);
    at::Tensor update = chunk.state_by_group(chunk.each_of(updates));
    at::bmm_out(update, chunk.by_group(left).transpose(1, 2), chunk.b);
  }
}

void plain_updates_backward(
    const ScanInputs& in,
    const std::vector<TokenRun>& chunks,
    const at::Tensor& decays,
    const at::Tensor& ddecays,
    const at::Tensor& dupdates,
    const ScanInputs& d
) {
  for (const AlikeChunks& group : computed_at_once(in, chunks)) {
    const ScanChunks chunk(in, group);
    const at::Tensor dupdate = chunk.state_by_group(chunk.each_of(dupdates).contiguous());
    const at::Tensor to_end = chunk.to_end().unsqueeze(-1);
    const at::Tensor left = chunk.xdt * to_end;
    chunk.write(d.b, at::bmm(chunk.by_group(left), dupdate));
    at::Tensor dxdt = at::empty_like(left); // first of what is left of x dt
    at::Tensor by_group = chunk.by_group(dxdt);
    at::bmm_out(by_group, chunk.b, dupdate.transpose(1, 2));
    dxdt.mul_(to_end);
    const at::Tensor ddt = (dxdt * chunk.x).sum(-1);
    const at::Tensor dsince = ddt * chunk.dt; // gradient of to_end, times to_end
    const at::Tensor total = dsince.sum(0) + chunk.each_of(ddecays) * chunk.each_of(decays);
    dsince.neg_();
    dsince[-1].add_(total);
    chunk.put(d.x, dxdt.mul_(chunk.dt.unsqueeze(-1)));
    chunk.put(d.dt, ddt);
    chunk.put(d.log_decay, sums_from_behind(dsince));
  }
}

void plain_outputs(
    const ScanInputs& in,
    const std::vector<TokenRun>& chunks,
    const at::Tensor& states,
    const at::Tensor& y
) {
  for (const AlikeChunks& group : computed_at_once(in, chunks)) {
    const ScanChunks chunk(in, group);
    const at::Tensor rows = at::empty_like(chunk.x); // [Q, B, H, P]
    at::Tensor by_group = chunk.by_group(rows);
    const at::Tensor state = chunk.state_by_group(chunk.each_of(states));
    at::bmm_out(by_group, chunk.c, state.transpose(1, 2));
    rows.mul_(chunk.from_state().unsqueeze(-1));
    const at::Tensor scores = at::bmm(chunk.c, chunk.b.transpose(1, 2));
    at::Tensor by_head = ScanChunks::by_head(rows);
    const at::Tensor matrix = chunk.between();
    chunk.heads_of_groups(matrix).mul_(scores.unsqueeze(1));
    by_head.baddbmm_(matrix, ScanChunks::by_head(chunk.xdt));
    chunk.put(y, rows);
  }
}

void plain_outputs_backward(
    const ScanInputs& in,
    const std::vector<TokenRun>& chunks,
    const at::Tensor& states,
    const at::Tensor& y,
    const at::Tensor& dy,
    const at::Tensor& dstates,
    const ScanInputs& d
) {
  for (const AlikeChunks& group : computed_at_once(in, chunks)) {
    const ScanChunks chunk(in, group);
    const at::Tensor drows = chunk.of(dy), dheads = ScanChunks::by_head(drows);

    // Through the matrix of the chunk: y = (between * scores) x dt, scores = c bᵀ.
    const at::Tensor matrix = chunk.between();
    const at::Tensor dmatrix =
        at::bmm(dheads, ScanChunks::by_head(chunk.xdt).transpose(1, 2)).mul_(matrix);
    const at::Tensor dscores = chunk.heads_of_groups(dmatrix).sum(1);
    chunk.heads_of_groups(matrix).mul_(at::bmm(chunk.c, chunk.b.transpose(1, 2)).unsqueeze(1));
    at::Tensor dxdt = at::empty_like(chunk.xdt);
    at::Tensor by_head = ScanChunks::by_head(dxdt);
    at::bmm_out(by_head, matrix.transpose(1, 2), dheads);
    at::Tensor dc = at::bmm(dscores, chunk.b);
    chunk.write(d.b, at::bmm(dscores.transpose(1, 2), chunk.c));

    // Through the state before the chunk: y = from_state * (state c).
    const at::Tensor read = chunk.by_group(drows * chunk.from_state().unsqueeze(-1));
    dc.baddbmm_(read, chunk.state_by_group(chunk.each_of(states)));
    chunk.write(d.c, dc);
    at::Tensor dstate = chunk.state_by_group(chunk.each_of(dstates));
    at::bmm_out(dstate, read.transpose(1, 2), chunk.c);

    // A decay up to token t is in all that t reads, which is dy y; one up to token s is, inverted,
    // in all that others read of s, which is dxdt x dt.
    const at::Tensor ddt = (dxdt * chunk.x).sum(-1); // [Q, B, H]
    const at::Tensor dsince = (drows * chunk.of(y)).sum(-1) - ddt * chunk.dt;
    chunk.put(d.x, dxdt.mul_(chunk.dt.unsqueeze(-1)));
    chunk.put(d.dt, ddt);
    chunk.put(d.log_decay, sums_from_behind(dsince));
  }
}

struct ChunkUpdates : torch::autograd::Function<ChunkUpdates> {
  struct Saved {
    std::vector<TokenRun> chunks;
    at::DeviceType target;
  };

  static variable_list forward(
      AutogradContext* ctx,
      const at::Tensor& x,
      const at::Tensor& dt,
      const at::Tensor& log_decay,
      const at::Tensor& b,
      const std::optional<at::Tensor>& starts,
      at::DeviceType target,
      const std::vector<TokenRun>& chunks
  ) {
    const ScanInputs in{x, dt, log_decay, b, b, starts.value_or(at::Tensor()), target};
    const auto count = static_cast<int64_t>(chunks.size());
    const int64_t batch = x.size(1), heads = x.size(2);
    const at::Tensor decays = at::empty({count, batch, heads}, dt.options());
    const at::Tensor updates = at::empty({count, batch, heads, x.size(3), b.size(3)}, dt.options());
    (fits_cpu_scan(in) ? cpu_updates : plain_updates)(in, chunks, decays, updates);
    ctx->save_for_backward({x, dt, log_decay, b, in.starts, decays});
    save(ctx, Saved{chunks, target});
    return {decays, updates};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto& [chunks, target] = get_saved<Saved>(ctx);
    const ScanInputs in{saved[0], saved[1], saved[2], saved[3], saved[3], saved[4], target};
    const ScanInputs d = gradients_of(in);
    (fits_cpu_scan(in) ? cpu_updates_backward : plain_updates_backward
    )(in, chunks, saved[5], gradients[0], gradients[1], d);
    return {d.x, d.dt, d.log_decay, d.b, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

struct ChunkOutputs : torch::autograd::Function<ChunkOutputs> {
  struct Saved {
    std::vector<TokenRun> chunks;
    at::DeviceType target;
  };

  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& x,
      const at::Tensor& dt,
      const at::Tensor& log_decay,
      const at::Tensor& b,
      const at::Tensor& c,
      const std::optional<at::Tensor>& starts,
      const at::Tensor& states,
      at::DeviceType target,
      const std::vector<TokenRun>& chunks
  ) {
    const ScanInputs in{x, dt, log_decay, b, c, starts.value_or(at::Tensor()), target};
    at::Tensor y = at::empty(x.sizes(), dt.options());
    (fits_cpu_scan(in) ? cpu_outputs : plain_outputs)(in, chunks, states, y);
    ctx->save_for_backward({x, dt, log_decay, b, c, in.starts, states, y});
    save(ctx, Saved{chunks, target});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto& [chunks, target] = get_saved<Saved>(ctx);
    const ScanInputs in{saved[0], saved[1], saved[2], saved[3], saved[4], saved[5], target};
    const at::Tensor &states = saved[kInputs], &y = saved[kInputs + 1];
    const at::Tensor dy = gradients[0].contiguous();
    const ScanInputs d = gradients_of(in);
    at::Tensor dstates = at::empty_like(states, at::MemoryFormat::Contiguous);
    (fits_cpu_scan(in) ? cpu_outputs_backward : plain_outputs_backward
    )(in, chunks, states, y, dy, dstates, d);
    const at::Tensor none;
    return {d.x, d.dt, d.log_decay, d.b, d.c, none, dstates, none, none};
  }
};

} // namespace

std::pair<at::Tensor, at::Tensor>
chunk_updates(const ScanInputs& in, const std::vector<TokenRun>& chunks) {
  const auto made = ChunkUpdates::apply(
      in.x, in.dt, in.log_decay, in.b, if_defined(in.starts), in.target, chunks
  );
  return {made[0], made[1]};
}

at::Tensor
chunk_outputs(const ScanInputs& in, const at::Tensor& states, const std::vector<TokenRun>& chunks) {
  return ChunkOutputs::apply(
      in.x, in.dt, in.log_decay, in.b, in.c, if_defined(in.starts), states, in.target, chunks
  );
}

} // namespace mh::hybrid
