/// The delta rule of one instruction set: the triangular systems of chunks and how these change the
/// state, what tokens read, and the gradients of both.
///
/// GEMMs in bf16 round keys, values, the inverse matrices, states and their gradients to bf16; sums
/// and the inversion are float32.

#include "delta_chunk.hpp"

namespace mh::kernels::MH_LEVEL {

namespace {

/// Makes the lower triangular matrix of head r in dmatrix, its diagonal left out.
template <class I, class T>
void set_lower(const DeltaChunk<I, T>& c, int64_t r) {
  const int64_t W = c.width();
  const float* since = c.since + r * W;
  for (int64_t t = 0; t < c.rows; ++t) {
    const float* scores = c.scores + t * W;
    float* lower = c.dmatrix + t * W;
    const float own = since[t], beta = c.beta[r * W + t];
    const int32_t document = c.documents[t];
    const auto end = static_cast<int32_t>(W), last = static_cast<int32_t>(t);
#pragma omp simd
    for (int32_t s = 0; s < end; ++s) {
      const float value = scores[s] * decay(own - since[s]) * beta;
      lower[s] = (s < last) & (c.documents[s] == document) ? value : 0;
    }
  }
}

/// The inverse of 1 + dmatrix in dscores, row after row, some columns at a time: each row is its unit
/// row less those before it, times the matrix's numbers.
template <class I, class T>
void invert(const DeltaChunk<I, T>& c) {
  const int64_t W = c.width();
  for (int64_t column = 0; column < W; column += kWidth) {
    std::fill(c.line, c.line + kWidth, 0.0F);
    for (int64_t t = 0; t < std::min(column, c.rows); ++t) {
      std::copy(c.line, c.line + kWidth, c.dscores + t * W + column);
    }
    for (int64_t t = column; t < c.rows; ++t) {
      const float* lower = c.dmatrix + t * W;
      float sums[kWidth] = {};
      for (int64_t s = column; s < t; ++s) {
        const float factor = lower[s];
        const float* before = c.dscores + s * W + column;
#pragma omp simd
        for (int64_t i = 0; i < kWidth; ++i) {
          sums[i] -= factor * before[i];
        }
      }
      if (t < column + kWidth) {
        sums[t - column] += 1;
      }
      std::copy(sums, sums + kWidth, c.dscores + t * W + column);
    }
  }
}

/// The right sides of the system of head r: rows [-beta from_state k, beta v] in tokens.
template <class I, class T>
void set_right_sides(const DeltaChunk<I, T>& c, int64_t r) {
  const int64_t K = c.call.key_dim, V = c.call.dim, D = K + V;
  for (int64_t t = 0; t < c.rows; ++t) {
    const float beta = c.beta[r * c.width() + t], factor = -beta * c.from_state[t];
    const T* key = c.rows_k + t * K;
    const I* value = c.v(r) + t * c.call.v.seq;
    c.expect_row(value + c.call.v.head, r);
    float* line = c.line;
#pragma omp simd
    for (int64_t i = 0; i < K; ++i) {
      line[i] = wide(key[i]) * factor;
    }
#pragma omp simd
    for (int64_t i = 0; i < V; ++i) {
      line[K + i] = wide(value[i]) * beta;
    }
    store_row(c.tokens + t * D, line, D);
  }
}

template <class T>
void stream_rows(T* out, const float* x, int64_t rows, int64_t n) {
  for (int64_t t = 0; t < rows; ++t) {
    stream_row(out + t * n, x + t * n, n);
  }
}

/// Makes -w and u, and what a chunk does to the state: (to_end k)ᵀ of both.
template <class I, class T>
void solve(const DeltaChunk<I, T>& c) {
  const int64_t K = c.call.key_dim, V = c.call.dim, D = K + V, Q = c.rows, W = c.width();
  c.read_directions(c.rows_k, c.factor_k, c.call.k, 1);
  const auto turned = c.as_right_transposed(c.turned, {c.rows_k, K}, Q, K);
  c.multiply(Q, Q, K, {c.rows_k, K}, turned, c.scores, W);
  for (int64_t r = 0; r < c.heads; ++r) {
    c.set_from_state(r);
    c.set_to_end(r);
    set_lower(c, r);
    invert(c);
    for (int64_t t = 0; t < Q; ++t) {
      store_row(c.matrix + t * W, c.dscores + t * W, W);
      store_row(c.inverse(r) + t * c.call.longest, c.dscores + t * W, c.call.longest);
    }
    set_right_sides(c, r);
    const auto sides = c.as_right(c.right, {c.tokens, D}, Q, c.depth(), D);
    c.multiply(Q, D, c.depth(), {c.matrix, W}, sides, c.first_out, D);
    stream_rows(c.solved(c.call.solved, r), c.first_out, Q, D);
    const auto rows = c.as_rows(c.tokens, c.first_out, Q, D);
    const auto made = c.as_right(c.right, rows, Q, c.depth(), D);

    c.scale_rows(c.scaled, c.rows_k, c.to_end);
    const auto written = c.as_left_transposed(c.left, c.scaled, K, K);
    c.multiply(K, K, c.depth(), written, made, c.changed, K);
    for (int64_t i = 0; i < K; ++i) {
      c.changed[i * K + i] += c.from_state[Q - 1];
    }
    stream_rows(c.state(c.call.transitions, r, K), c.changed, K, K);
    c.multiply(K, V, c.depth(), written, c.columns_from(made, K), c.changed, V);
    stream_rows(c.state(c.call.updates, r, V), c.changed, K, V);
  }
}

/// From the gradient of the system's matrix, negated, in dmatrix: adds to those of the scores, betas
/// and decays.
template <class I, class T>
void through_lower(const DeltaChunk<I, T>& c, int64_t r) {
  const int64_t W = c.width();
  const float* since = c.since + r * W;
  for (int64_t t = 0; t < c.rows; ++t) {
    const float *scores = c.scores + t * W, *dlower = c.dmatrix + t * W;
    float* dscores = c.dscores + t * W;
    float* dsince = c.dsince;
    const float own = since[t], beta = c.beta[r * W + t];
    const int32_t document = c.documents[t];
    const auto last = static_cast<int32_t>(t), end = (last + 15) / 16 * 16;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int32_t s = 0; s < end; ++s) {
      const float left = decay(own - since[s]);
      const bool reads = (s < last) & (c.documents[s] == document);
      const float change = reads ? -dlower[s] * left : 0;
      const float product = reads ? change * scores[s] : 0;
      sum += product;
      dsince[s] -= product * beta;
      dscores[s] += change * beta;
    }
    c.dbeta[t] += sum;
    c.dsince[t] += sum * beta;
  }
}

/// From the gradient of the right sides, in first_out: that of v, and adds to others.
template <class I, class T>
void through_right_sides(const DeltaChunk<I, T>& c, int64_t r) {
  const int64_t K = c.call.key_dim, V = c.call.dim, D = K + V;
  for (int64_t t = 0; t < c.rows; ++t) {
    const float *dw = c.first_out + t * D, *du = dw + K;
    const float beta = c.beta[r * c.width() + t], left = c.from_state[t], factor = -beta * left;
    const T* key = c.rows_k + t * K;
    const I* value = c.v(r) + t * c.call.v.seq;
    c.expect_row(value + c.call.v.head, r);
    float *dk = c.dk + t * K, *line = c.line;
    float read = 0, of_value = 0;
#pragma omp simd reduction(+ : read)
    for (int64_t i = 0; i < K; ++i) {
      read -= dw[i] * wide(key[i]);
      dk[i] += dw[i] * factor;
    }
#pragma omp simd reduction(+ : of_value)
    for (int64_t i = 0; i < V; ++i) {
      of_value += du[i] * wide(value[i]);
      line[i] = du[i] * beta;
    }
    read *= left;
    c.dbeta[t] += read + of_value;
    c.dsince[t] += read * beta;
    stream_row(static_cast<I*>(c.call.dv) + c.of_row(t, r) * V, line, V);
  }
}

/// From the gradient of the rows that are written to the state, in first_out: adds to those of keys
/// and decays.
template <class I, class T>
void through_written(const DeltaChunk<I, T>& c, double dleft) {
  const int64_t K = c.call.key_dim, Q = c.rows;
  double total = dleft * c.from_state[Q - 1];
  for (int64_t t = 0; t < Q; ++t) {
    const float* d = c.first_out + t * K;
    const T* written = c.scaled + t * K;
    const float left = c.to_end[t];
    float* dk = c.dk + t * K;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < K; ++i) {
      sum += d[i] * wide(written[i]);
      dk[i] += d[i] * left;
    }
    c.dsince[t] -= sum;
    total += sum;
  }
  c.dsince[Q - 1] += static_cast<float>(total);
}

template <class I, class T>
void solve_backward(const DeltaChunk<I, T>& c) {
  const int64_t K = c.call.key_dim, V = c.call.dim, D = K + V, Q = c.rows, W = c.width();
  c.read_directions(c.rows_k, c.factor_k, c.call.k, 1);
  const auto turned = c.as_right_transposed(c.turned, {c.rows_k, K}, Q, K);
  c.multiply(Q, Q, K, {c.rows_k, K}, turned, c.scores, W);
  std::fill(c.dscores, c.dscores + W * W, 0.0F);
  std::fill(c.dk, c.dk + Q * K, 0.0F);
  for (int64_t r = 0; r < c.heads; ++r) {
    c.set_from_state(r);
    c.set_to_end(r);
    std::fill(c.dsince, c.dsince + W, 0.0F);
    std::fill(c.dbeta, c.dbeta + W, 0.0F);
    c.scale_rows(c.scaled, c.rows_k, c.to_end);
    const ChunkMatrix<T> written{c.scaled, K}, solved{c.solved(c.call.solved, r), D};

    // Through what is written to the state: of -w and u, in addition to what tokens read of them;
    // and of the keys.
    const T* given = c.solved(c.call.dsolved, r);
    float* dsolved = c.second_out;
    for (int64_t i = 0; i < Q * D; ++i) {
      dsolved[i] = wide(given[i]);
    }
    const float* gradient = c.state(c.call.dtransitions, r, K);
    double dleft = 0;
    for (int64_t i = 0; i < K; ++i) {
      dleft += gradient[i * K + i];
    }
    auto rows = c.as_rows(c.rows_state, gradient, K, K);
    c.multiply(Q, K, K, written, c.as_right(c.right_state, rows, K, K, K), dsolved, D, true);
    auto across = c.as_right_transposed(c.right_state, rows, K, K);
    c.multiply(Q, K, K, solved, across, c.first_out, K);
    rows = c.as_rows(c.rows_state, c.state(c.call.dupdates, r, V), K, V);
    c.multiply(Q, V, K, written, c.as_right(c.right_state, rows, K, K, V), dsolved + K, D, true);
    across = c.as_right_transposed(c.right_state, rows, K, V);
    c.multiply(Q, K, V, {solved.data + K, D}, across, c.first_out, K, true);
    through_written(c, dleft);

    // Through the system: of its right sides, and of its matrix.
    rows = c.as_rows(c.tokens, dsolved, Q, D);
    const auto sides = c.as_right(c.right, rows, Q, c.depth(), D);
    const auto inverse = c.as_left_transposed(c.left, c.inverse(r), c.call.longest, Q);
    float* dsides = c.first_out;
    c.multiply(Q, D, c.depth(), inverse, sides, dsides, D);
    rows = c.as_rows(c.tokens, dsides, Q, D);
    c.multiply(Q, Q, D, rows, c.as_right_transposed(c.right, solved, Q, D), c.dmatrix, W);
    through_lower(c, r);
    through_right_sides(c, r);
    c.write_log_decay(r);
    for (int64_t t = 0; t < Q; ++t) {
      c.call.dbeta[c.of_row(t, r)] = c.dbeta[t];
    }
  }

  // Through the scores, k kᵀ.
  for (int64_t t = 0; t < Q; ++t) {
    for (int64_t s = 0; s < t; ++s) {
      c.dscores[s * W + t] = c.dscores[t * W + s];
    }
    std::fill(c.dscores + t * W + Q, c.dscores + (t + 1) * W, 0.0F);
    c.dscores[t * W + t] = 0;
  }
  const auto keys = c.as_right(c.right, {c.rows_k, K}, Q, c.depth(), K);
  for (int64_t t = 0; t < Q; ++t) {
    store_row(c.matrix + t * W, c.dscores + t * W, W);
  }
  c.multiply(Q, K, c.depth(), {c.matrix, W}, keys, c.dk, K, true);
  c.write_directions(c.call.dk, c.call.k, c.factor_k, 1, c.dk);
}

/// Makes the chunk's matrix: the decayed scores of each token (rows) and those before it.
template <class I, class T>
void set_matrix(const DeltaChunk<I, T>& c, int64_t r) {
  const int64_t W = c.width();
  const float* since = c.since + r * W;
  float* line = c.dmatrix;
  for (int64_t t = 0; t < c.rows; ++t) {
    const float* scores = c.scores + t * W;
    const float own = since[t];
    const int32_t document = c.documents[t];
    const auto last = static_cast<int32_t>(t), end = (last / 16 + 1) * 16;
#pragma omp simd
    for (int32_t s = 0; s < end; ++s) {
      const float value = scores[s] * decay(own - since[s]);
      line[s] = (s <= last) & (c.documents[s] == document) ? value : 0;
    }
    store_row(c.matrix + t * W, line, end);
    std::fill(c.matrix + t * W + end, c.matrix + (t + 1) * W, T{});
  }
}

/// Makes what tokens write, u - w S, in `out`; `state` is a right operand.
template <class I, class T>
void set_writes(const DeltaChunk<I, T>& c, int64_t r, T* out, ChunkMatrix<T> state) {
  const int64_t K = c.call.key_dim, V = c.call.dim, D = K + V;
  const T* solved = c.solved(c.call.solved, r);
  c.multiply(c.rows, V, K, {solved, D}, state, c.first_out, V);
  for (int64_t t = 0; t < c.rows; ++t) {
    const T* u = solved + t * D + K;
    float* line = c.first_out + t * V;
#pragma omp simd
    for (int64_t i = 0; i < V; ++i) {
      line[i] += wide(u[i]);
    }
    store_row(out + t * V, line, V);
  }
  c.clear_rest(out, V);
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
    const auto rows = c.as_rows(c.rows_state, c.state(c.call.states, r, V), K, V);
    const auto state = c.as_right(c.right_state, rows, K, K, V);
    set_writes(c, r, c.tokens, state);
    set_matrix(c, r);
    const auto writes = c.as_right(c.right, {c.tokens, V}, Q, c.depth(), V);
    c.multiply(Q, V, c.depth(), {c.matrix, W}, writes, c.first_out, V);
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
  const int64_t K = c.call.key_dim, V = c.call.dim, D = K + V, Q = c.rows, W = c.width();
  const int64_t depth = c.depth();
  c.read_directions(c.rows_k, c.factor_k, c.call.k, 1);
  c.read_directions(c.rows_q, c.factor_q, c.call.q, c.call.query_scale);
  const auto turned = c.as_right_transposed(c.turned, {c.rows_q, K}, Q, K);
  c.multiply(Q, Q, K, {c.rows_k, K}, turned, c.scores, W); // transposed: [Q (s), Q (t)]
  std::fill(c.dscores, c.dscores + W * W, 0.0F);
  std::fill(c.dq, c.dq + Q * K, 0.0F);
  T *dwrites = c.tokens, *dy = c.tokens + depth * V; // one behind the other
  T* writes = c.tokens + 2 * depth * V;
  for (int64_t r = 0; r < c.heads; ++r) {
    c.set_from_state(r);
    std::fill(c.dsince, c.dsince + W, 0.0F);
    const auto rows = c.as_rows(c.rows_state, c.state(c.call.states, r, V), K, V);
    set_writes(c, r, writes, c.as_right(c.right_state, rows, K, K, V));
    for (int64_t t = 0; t < Q; ++t) {
      const float* from = c.call.dy + c.of_row(t, r) * V;
      c.expect_row(from + V, r);
      store_row(dy + t * V, from, V);
    }
    c.clear_rest(dy, V);

    // Through the chunk's matrix.
    const auto dy_turned = c.as_right_transposed(c.right, {dy, V}, Q, V);
    c.multiply(Q, Q, V, {writes, V}, dy_turned, c.dmatrix, W);
    through_matrix(c, r);
    const auto dy_right = c.as_right(c.right, {dy, V}, Q, depth, V);
    c.multiply(Q, V, depth, {c.matrix, W}, dy_right, c.first_out, V);
    for (int64_t t = 0; t < Q; ++t) {
      store_row(dwrites + t * V, c.first_out + t * V, V);
    }
    c.clear_rest(dwrites, V);

    // Through the state: from_state q and -w read it, one behind the other.
    const auto turned_state = c.as_right_transposed(c.right_state, rows, K, V);
    c.multiply(depth + Q, K, V, {dwrites, V}, turned_state, c.second_out, K);
    c.scale_rows(c.scaled, c.rows_q, c.from_state);
    through_reads(c, c.second_out + depth * K);
    T* dsolved = c.solved(c.call.dsolved, r);
    for (int64_t t = 0; t < Q; ++t) {
      stream_row(dsolved + t * D, c.second_out + t * K, K);
      stream_row(dsolved + t * D + K, c.first_out + t * V, V);
    }
    const T* solved = c.solved(c.call.solved, r);
    pack_transposed(c.left, solved, D, Q, depth, K, 2 * depth);
    pack_transposed(c.left + depth, c.scaled, K, Q, depth, K, 2 * depth);
    const auto both = c.as_right(c.right, {dwrites, V}, 2 * depth, 2 * depth, V);
    c.multiply(K, V, 2 * depth, {c.left, 2 * depth}, both, c.changed, V);
    stream_rows(c.state(c.call.dstates, r, V), c.changed, K, V);
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

template <class I, class T>
constexpr DeltaKernels kKernels = {
    .solve = kOver<I, T, solve<I, T>>,
    .solve_backward = kOver<I, T, solve_backward<I, T>>,
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
