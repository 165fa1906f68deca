/// The delta rule of one instruction set: the state from chunk to chunk, what tokens read, and the
/// gradients of both.
///
/// GEMMs in bf16 round keys, values, the inverse matrices, states and their gradients to bf16; sums
/// and the inversion are float32.

#include "delta_systems.hpp"

namespace mh::kernels::MH_LEVEL {

namespace {

/// Passes the state of head r through a chunk: what its tokens write, and the state behind it.
template <class I, class T>
void pass(const DeltaChunk<I, T>& c, int64_t r) {
  const int64_t K = c.call.key_dim, V = c.call.dim, Q = c.rows;
  const auto solved = c.solved(r);
  stream_rows(c.of_head(c.call.states, r, K, V), c.running, K, V);
  const auto rows = c.as_rows(c.rows_state, c.running, K, V);
  c.multiply(Q, V, K, solved, c.as_right(c.right_state, rows, K, K, V), c.first_out, V);
  T* writes = c.of_head(c.call.writes, r, c.call.longest, V);
  for (int64_t t = 0; t < Q; ++t) {
    const T* u = solved.data + t * solved.stride + K;
    float* line = c.first_out + t * V;
    c.expect_chunk(c.call.solved, r, 1, t, c.call.longest, K + V);
#pragma omp simd
    for (int64_t i = 0; i < V; ++i) {
      line[i] += wide(u[i]);
    }
    stream_row(writes + t * V, line, V);
  }
  c.set_from_state(r);
  c.set_to_end(r);
  c.read_directions(c.rows_k, c.factor_k, c.call.k, 1);
  c.scale_rows(c.scaled, c.rows_k, c.to_end);
  const auto written = c.as_left_transposed(c.left, c.scaled, K, K);
  const auto made = c.as_rows(c.tokens, c.first_out, Q, V);
  const auto right = c.as_right(c.right, made, Q, c.depth(), V);
  const float left = c.from_state[Q - 1];
  for (int64_t i = 0; i < K * V; ++i) {
    c.running[i] *= left;
  }
  c.multiply(K, V, c.depth(), written, right, c.running, V, true);
}

/// Passes the gradient of the state behind a chunk to the state before it.
template <class I, class T>
void pass_backward(const DeltaChunk<I, T>& c, int64_t r) {
  const int64_t K = c.call.key_dim, V = c.call.dim, Q = c.rows;
  stream_rows(c.of_head(c.call.behind, r, K, V), c.running, K, V);
  c.set_from_state(r);
  c.set_to_end(r);
  c.read_directions(c.rows_k, c.factor_k, c.call.k, 1);
  c.scale_rows(c.scaled, c.rows_k, c.to_end);
  for (int64_t t = 0; t < Q; ++t) {
    c.expect_chunk(c.call.solved, r, -1, t, c.call.longest, K + V);
    c.expect_chunk(c.call.dwrites, r, -1, t, c.call.longest, V);
    c.expect_chunk(c.call.dstates, r, -1, t, K, V);
    widen(c.first_out + t * V, V, c.values(c.call.dwrites, r).data + t * V, 1, V);
  }
  const auto rows = c.as_rows(c.rows_state, c.running, K, V);
  const auto behind = c.as_right(c.right_state, rows, K, K, V);
  c.multiply(Q, V, K, {c.scaled, K}, behind, c.first_out, V, true);
  stream_rows(c.of_head(c.call.du, r, c.call.longest, V), c.first_out, Q, V);
  const auto made = c.as_rows(c.tokens, c.first_out, Q, V);
  const auto right = c.as_right(c.right, made, Q, c.depth(), V);
  const auto solved = c.solved(r);
  const auto turned = c.as_left_transposed(c.left, solved.data, solved.stride, K);
  const float left = c.from_state[Q - 1];
  const T* read = c.state(c.call.dstates, r).data;
#pragma omp simd
  for (int64_t i = 0; i < K * V; ++i) {
    c.running[i] = c.running[i] * left + wide(read[i]);
  }
  c.multiply(K, V, c.depth(), turned, right, c.running, V, true);
}

template <class I, class T>
void outputs(const DeltaChunk<I, T>& c) {
  const int64_t K = c.call.key_dim, V = c.call.dim, Q = c.rows, W = c.width();
  c.read_directions(c.rows_k, c.factor_k, c.call.k, 1);
  c.read_directions(c.rows_q, c.factor_q, c.call.q, c.call.query_scale);
  const auto turned = c.as_right_transposed(c.turned, {c.rows_k, K}, Q, K);
  c.multiply(Q, Q, K, {c.rows_q, K}, turned, c.scores, W);
  for (int64_t r = 0; r < c.heads; ++r) {
    c.set_from_state(r);
    set_matrix(c, r, [&](int64_t t) {
      c.expect_next(c.call.states, r, t, c.call.key_dim, c.call.dim);
      c.expect_next(c.call.writes, r, t, c.call.longest, c.call.dim);
    });
    const auto writes = c.as_right(c.right, c.values(c.call.writes, r), Q, c.depth(), V);
    c.multiply(Q, V, c.depth(), {c.matrix, W}, writes, c.first_out, V);
    const auto state = c.as_right(c.right_state, c.state(c.call.states, r), K, K, V);
    c.multiply(Q, V, K, {c.rows_q, K}, state, c.second_out, V);
    for (int64_t t = 0; t < Q; ++t) {
      const float *own = c.first_out + t * V, *read = c.second_out + t * V;
      const float factor = c.from_state[t];
      float* line = c.line;
#pragma omp simd
      for (int64_t i = 0; i < V; ++i) {
        line[i] = read[i] * factor + own[i];
      }
      stream_row(c.call.y + c.of_row(t, r) * V, line, V);
    }
  }
}

/// Adds the gradient of the chunk's matrix, transposed, to those of the scores and decays; and makes
/// the matrix, transposed.
template <class I, class T>
void through_matrix(const DeltaChunk<I, T>& c, int64_t r) {
  const int64_t W = c.width();
  const float* since = c.since + r * W;
  for (int64_t s = 0; s < c.rows; ++s) {
    const float* scores = c.scores + s * W;
    float *dscores = c.dscores + s * W, *dmatrix = c.dmatrix + s * W, *dsince = c.dsince;
    const float own = since[s];
    const int32_t document = c.documents[s];
    const auto least = static_cast<int32_t>(s), start = least / 16 * 16;
    const auto end = static_cast<int32_t>(W);
    c.expect_next(c.call.states, r, s, c.call.key_dim, c.call.dim);
    c.expect_next(c.call.writes, r, s, c.call.longest, c.call.dim);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int32_t t = start; t < end; ++t) {
      const float left = decay(since[t] - own);
      const bool reads = (t >= least) & (c.documents[t] == document);
      const float change = reads ? dmatrix[t] * left : 0;
      const float product = reads ? change * scores[t] : 0;
      dmatrix[t] = reads ? scores[t] * left : 0;
      dscores[t] += change;
      dsince[t] += product;
      sum += product;
    }
    dsince[s] -= sum;
    std::fill(c.matrix + s * W, c.matrix + s * W + start, T{});
    store_row(c.matrix + s * W + start, dmatrix + start, W - start);
  }
}

/// From the gradient of what queries read of the state, without decays: adds to those of queries and
/// decays.
template <class I, class T>
void through_reads(const DeltaChunk<I, T>& c, const float* dread) {
  const int64_t K = c.call.key_dim;
  for (int64_t t = 0; t < c.rows; ++t) {
    const float* d = dread + t * K;
    const T* query = c.scaled + t * K;
    const float factor = c.from_state[t];
    float* dq = c.dq + t * K;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < K; ++i) {
      sum += d[i] * wide(query[i]);
      dq[i] += d[i] * factor;
    }
    c.dsince[t] += sum;
  }
}

template <class I, class T>
void outputs_backward(const DeltaChunk<I, T>& c) {
  const int64_t K = c.call.key_dim, V = c.call.dim, Q = c.rows, W = c.width();
  const int64_t depth = c.depth();
  c.read_directions(c.rows_k, c.factor_k, c.call.k, 1);
  c.read_directions(c.rows_q, c.factor_q, c.call.q, c.call.query_scale);
  const auto turned = c.as_right_transposed(c.turned, {c.rows_q, K}, Q, K);
  c.multiply(Q, Q, K, {c.rows_k, K}, turned, c.scores, W); // transposed: [Q (s), Q (t)]
  std::fill(c.dscores, c.dscores + W * W, 0.0F);
  std::fill(c.dq, c.dq + Q * K, 0.0F);
  T* dy = c.tokens;
  for (int64_t r = 0; r < c.heads; ++r) {
    c.set_from_state(r);
    std::fill(c.dsince, c.dsince + W, 0.0F);
    for (int64_t t = 0; t < Q; ++t) {
      const float* from = c.call.dy + c.of_row(t, r) * V;
      expect(from + V, V * static_cast<int64_t>(sizeof(float)));
      store_row(dy + t * V, from, V);
    }

    // Through the chunk's matrix.
    const auto dy_turned = c.as_right_transposed(c.right, {dy, V}, Q, V);
    c.multiply(Q, Q, V, c.values(c.call.writes, r), dy_turned, c.dmatrix, W);
    through_matrix(c, r);
    const auto dy_right = c.as_right(c.right, {dy, V}, Q, depth, V);
    c.multiply(Q, V, depth, {c.matrix, W}, dy_right, c.first_out, V);
    T* dwrites = c.of_head(c.call.dwrites, r, c.call.longest, V);
    stream_rows(dwrites, c.first_out, Q, V);
    std::fill(dwrites + Q * V, dwrites + c.call.longest * V, T{});

    // Through the state, which queries read.
    c.scale_rows(c.scaled, c.rows_q, c.from_state);
    const auto read = c.as_left_transposed(c.left, c.scaled, K, K);
    c.multiply(K, V, depth, read, dy_right, c.changed, V);
    stream_rows(c.of_head(c.call.dstates, r, K, V), c.changed, K, V);
    const auto state = c.as_right_transposed(c.right_state, c.state(c.call.states, r), K, V);
    c.multiply(Q, K, V, {dy, V}, state, c.second_out, K);
    through_reads(c, c.second_out);
    c.write_log_decay(r);
  }

  // Through the scores, q kᵀ.
  for (int64_t s = 0; s < Q; ++s) {
    store_row(c.matrix + s * W, c.dscores + s * W, W);
  }
  const auto queries = c.as_right(c.right, {c.rows_q, K}, Q, depth, K);
  c.multiply(Q, K, depth, {c.matrix, W}, queries, c.dk, K);
  const auto keys = c.as_right(c.right, {c.rows_k, K}, Q, depth, K);
  const auto dscores = c.as_left_transposed(c.left, c.matrix, W, Q);
  c.multiply(Q, K, depth, dscores, keys, c.dq, K, true);
  c.write_directions(c.call.dk, c.call.k, c.factor_k, 1, c.dk);
  c.write_directions(c.call.dq, c.call.q, c.factor_q, c.call.query_scale, c.dq);
}

template <class I, class T, void (*Of)(const DeltaChunk<I, T>&)>
constexpr auto kOver = over_tasks<DeltaChunk<I, T>, DeltaCall, Of>;

/// A kernel over heads, from the first chunk to the last, or `Back`.
template <class I, class T, void (*Of)(const DeltaChunk<I, T>&, int64_t r), bool Back>
void over_heads(
    const DeltaCall& call, const ProductKernels& products, void* memory, int64_t begin, int64_t end
) {
  const int64_t shared = call.heads / call.groups; // heads of a key head
  for (int64_t task = begin; task < end; ++task) {
    const int64_t group = task / shared, r = task % shared; // groups of all samples are counted
    for (int64_t i = 0; i < call.count; ++i) {
      const int64_t number = Back ? call.count - 1 - i : i;
      const DeltaChunk<I, T> c(call, products, memory, number * call.batch * call.groups + group);
      if (i == 0) {
        std::fill(c.running, c.running + call.key_dim * call.dim, 0.0F);
      }
      Of(c, r);
    }
  }
  end_stream();
}

template <class I, class T>
constexpr DeltaKernels kKernels = {
    .solve = kOver<I, T, solve<I, T>>,
    .solve_backward = kOver<I, T, solve_backward<I, T>>,
    .pass = over_heads<I, T, pass<I, T>, false>,
    .pass_backward = over_heads<I, T, pass_backward<I, T>, true>,
    .outputs = kOver<I, T, outputs<I, T>>,
    .outputs_backward = kOver<I, T, outputs_backward<I, T>>,
    .bytes = DeltaChunk<I, T>::bytes};

} // namespace

const ByTypes<DeltaKernels>& delta_kernels() {
  static constexpr ByTypes<DeltaKernels> kTable = {
      .fp32 = kKernels<float, float>, .bf16 = kKernels<Bf16, Bf16>, .mixed = kKernels<Bf16, float>};
  return kTable;
}

} // namespace mh::kernels::MH_LEVEL
