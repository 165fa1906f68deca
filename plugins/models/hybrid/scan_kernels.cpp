/// The scan of one instruction set: what each chunk adds to the state, what its tokens read, and the
/// gradients of both.
///
/// GEMMs in bf16 round the decayed scores, the states and their gradients to bf16; sums are float32.
/// Mamba-2's authors do so, too.

#include "scan_chunk.hpp"

namespace mh::kernels::MH_LEVEL {

namespace {

/// Makes what a chunk adds to the state: (to_end dt x)ᵀ b.
template <class I, class T>
void updates(const CachedChunk<I, T>& c) {
  const int64_t P = c.call.dim, N = c.call.state;
  c.read_group(c.rows_b, c.call.b);
  const auto b = c.as_right(c.right_b, {c.rows_b, N}, c.rows, c.depth(), N);
  for (int64_t r = 0; r < c.heads; ++r) {
    c.set_from_state(r);
    c.set_to_end(r);
    c.call.decays[c.of_chunk(r)] = c.from_state[c.rows - 1];
    c.write_scaled_x(c.scaled, r, c.to_end);
    const auto written = c.as_left_transposed(c.left, c.scaled, P, P);
    for (int64_t t = 0; t < c.rows; ++t) {
      c.expect_next(r, t, nullptr, {});
    }
    c.multiply(P, N, c.depth(), written, b, c.changed, N);
    stream_row(c.call.updates + c.of_chunk(r) * c.state_size(), c.changed, P * N);
  }
}

template <class I, class T>
void updates_backward(const CachedChunk<I, T>& c) {
  const int64_t P = c.call.dim, N = c.call.state, Q = c.rows;
  c.read_group(c.rows_b, c.call.b);
  for (int64_t r = 0; r < c.heads; ++r) {
    c.set_to_end(r);
    c.write_scaled_x(c.scaled, r, c.to_end);
    const float* gradient = c.call.dupdates + c.of_chunk(r) * c.state_size();
    const auto dupdate = c.as_rows(c.rows_state, gradient, P, N);
    const auto turned = c.as_right_transposed(c.right_state, dupdate, P, N);
    c.multiply(Q, P, N, {c.rows_b, N}, turned, c.first_out, P);
    const auto right = c.as_right(c.right_state, dupdate, P, P, N);
    c.multiply(Q, N, P, {c.scaled, P}, right, c.db, N, r > 0);
    c.write_x(r, c.scaled, c.first_out, c.to_end, c.call.dupdates, c.dsince);
    double total = c.call.ddecays[c.of_chunk(r)] * c.call.decays[c.of_chunk(r)];
    for (int64_t t = 0; t < Q; ++t) { // gradient of to_end, times to_end
      total += c.dsince[t];
      c.dsince[t] = -c.dsince[t];
    }
    c.dsince[Q - 1] += static_cast<float>(total);
    c.write_log_decay(r);
  }
  c.write_group(c.call.db, c.db);
}

/// Makes what a chunk's tokens read: from_state (state c), and the chunk's matrix times x dt.
template <class I, class T>
void outputs(const CachedChunk<I, T>& c) {
  const int64_t P = c.call.dim, N = c.call.state, Q = c.rows, W = c.width();
  c.read_group(c.rows_b, c.call.b);
  c.read_group(c.rows_c, c.call.c);
  const auto turned = c.as_right_transposed(c.turned, {c.rows_b, N}, Q, N);
  c.multiply(Q, Q, N, {c.rows_c, N}, turned, c.scores, W);
  for (int64_t r = 0; r < c.heads; ++r) {
    const float* before = c.call.states + c.of_chunk(r) * c.state_size();
    const auto state = c.as_rows(c.rows_state, before, P, N);
    const auto right = c.as_right_transposed(c.right_state, state, P, N);
    c.multiply(Q, P, N, {c.rows_c, N}, right, c.first_out, P);
    c.set_from_state(r);
    set_matrix(c, r, [&](int64_t t) { c.expect_next(r, t, c.call.states, {c.call.y}); });
    c.write_scaled_x(c.rows_x, r, nullptr);
    const auto x = c.as_right(c.right, {c.rows_x, P}, Q, c.depth(), P);
    c.multiply(Q, P, c.depth(), {c.matrix, W}, x, c.second_out, P);
    for (int64_t t = 0; t < Q; ++t) {
      const float *read = c.first_out + t * P, *own = c.second_out + t * P;
      const float factor = c.from_state[t];
      float* y = c.call.y + c.of_row(t, r) * P;
#pragma omp simd
      for (int64_t i = 0; i < P; ++i) {
        y[i] = read[i] * factor + own[i];
      }
    }
  }
}

/// Adds the gradient of the chunk's matrix, transposed, to that of the scores; and makes the matrix,
/// transposed.
template <class I, class T>
void through_matrix(const CachedChunk<I, T>& c, int64_t r) {
  const int64_t W = c.width();
  const float* since = c.since + r * W;
  for (int64_t s = 0; s < c.rows; ++s) {
    const float* scores = c.scores + s * W;
    float *dscores = c.dscores + s * W, *dmatrix = c.dmatrix + s * W;
    const float own = since[s];
    const int32_t document = c.documents[s];
    c.expect_next(r, s, c.call.states, {c.call.dy, c.call.y});
    const auto least = static_cast<int32_t>(s), start = least / 16 * 16;
    const auto end = static_cast<int32_t>(W);
#pragma omp simd
    for (int32_t t = start; t < end; ++t) {
      const float left = decay(since[t] - own);
      const bool reads = (t >= least) & (c.documents[t] == document);
      const float change = reads ? dmatrix[t] * left : 0;
      dmatrix[t] = reads ? scores[t] * left : 0;
      dscores[t] += change;
    }
    std::fill(c.matrix + s * W, c.matrix + s * W + start, T{});
    store_row(c.matrix + s * W + start, dmatrix + start, W - start);
  }
}

template <class I, class T>
void outputs_backward(const CachedChunk<I, T>& c) {
  const int64_t P = c.call.dim, N = c.call.state, Q = c.rows, W = c.width();
  c.read_group(c.rows_b, c.call.b);
  c.read_group(c.rows_c, c.call.c);
  const auto right_b = c.as_right(c.right_b, {c.rows_b, N}, Q, c.depth(), N);
  const auto right_c = c.as_right(c.right_c, {c.rows_c, N}, Q, c.depth(), N);
  const auto turned = c.as_right_transposed(c.turned, {c.rows_c, N}, Q, N);
  c.multiply(Q, Q, N, {c.rows_b, N}, turned, c.scores, W); // transposed: [Q (s), Q (t)]
  std::fill(c.dscores, c.dscores + Q * W, 0.0F);
  for (int64_t r = 0; r < c.heads; ++r) {
    c.set_from_state(r);
    c.write_scaled_x(c.rows_x, r, nullptr);
    c.read_dy(r);

    // Through the matrix of the chunk: y = matrix x dt, to the gradient of x dt.
    const auto dy_turned = c.as_right_transposed(c.right, {c.rows_dy, P}, Q, P);
    c.multiply(Q, Q, P, {c.rows_x, P}, dy_turned, c.dmatrix, W);
    through_matrix(c, r);
    const auto dy_right = c.as_right(c.right, {c.rows_dy, P}, Q, c.depth(), P);
    c.multiply(Q, P, c.depth(), {c.matrix, W}, dy_right, c.first_out, P);

    // Through the state before the chunk: y = from_state (state c).
    const float* before = c.call.states + c.of_chunk(r) * c.state_size();
    const auto state = c.as_rows(c.rows_state, before, P, N);
    const auto right = c.as_right(c.right_state, state, P, P, N);
    c.multiply(Q, N, P, {c.scaled, P}, right, c.dc, N, r > 0);
    const auto read = c.as_left_transposed(c.left, c.scaled, P, P);
    c.multiply(P, N, c.depth(), read, right_c, c.changed, N);
    stream_row(c.call.dstates + c.of_chunk(r) * c.state_size(), c.changed, P * N);

    // A decay up to token t is in all that t reads, which is dy y; one up to token s is, inverted,
    // in all that others read of s, which is x dt times its gradient. Both are of the numbers as
    // they were multiplied: the sums of all that cancels would show their rounding.
    c.write_x(r, c.rows_x, c.first_out, nullptr, nullptr, c.dsince);
    for (int64_t t = 0; t < Q; ++t) {
      c.dsince[t] = c.along_y[t] - c.dsince[t];
    }
    c.write_log_decay(r);
  }

  // Through the scores: c bᵀ.
  for (int64_t s = 0; s < Q; ++s) {
    store_row(c.matrix + s * W, c.dscores + s * W, W);
  }
  c.multiply(Q, N, c.depth(), {c.matrix, W}, right_c, c.db, N);
  const auto dscores = c.as_left_transposed(c.turned, c.matrix, W, Q);
  c.multiply(Q, N, c.depth(), dscores, right_b, c.dc, N, true);
  c.write_group(c.call.db, c.db);
  c.write_group(c.call.dc, c.dc);
}

template <class I, class T, void (*Of)(const CachedChunk<I, T>&)>
constexpr auto kOver = over_tasks<CachedChunk<I, T>, ScanCall, Of>;

template <class I, class T>
constexpr ScanKernels kKernels = {
    .updates = kOver<I, T, updates<I, T>>,
    .updates_backward = kOver<I, T, updates_backward<I, T>>,
    .outputs = kOver<I, T, outputs<I, T>>,
    .outputs_backward = kOver<I, T, outputs_backward<I, T>>,
    .bytes = [](const ScanCall& call) { return CachedChunk<I, T>::bytes(call, {}); }};

} // namespace

const ByTypes<ScanKernels>& scan_kernels() {
  static constexpr ByTypes<ScanKernels> kTable = {
      .fp32 = kKernels<float, float>, .bf16 = kKernels<Bf16, Bf16>, .mixed = kKernels<Bf16, float>};
  return kTable;
}

} // namespace mh::kernels::MH_LEVEL
