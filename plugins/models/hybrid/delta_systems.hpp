#pragma once
/// The triangular systems of chunks, of one instruction set: -w and u, how chunks change the state,
/// and the gradients of both.

#include "delta_chunk.hpp"

#include <algorithm>

namespace mh::kernels::MH_LEVEL {

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

using Lanes = float __attribute__((vector_size(64), aligned(4), may_alias));
constexpr int64_t kLanes = 16;

inline Lanes load_lanes(const float* x) {
  return *reinterpret_cast<const Lanes*>(x);
}

/// The inverse of 1 + dmatrix in dscores, row after row, some columns at a time: each row is its unit
/// row less those before it, times the matrix's numbers. Two sums of each do not wait for each other.
template <class I, class T>
void invert(const DeltaChunk<I, T>& c) {
  const int64_t W = c.width();
  for (int64_t column = 0; column < W; column += kLanes) {
    for (int64_t t = 0; t < c.rows; ++t) {
      float* inverse = c.dscores + t * W + column;
      Lanes even{}, odd{};
      if (t >= column && t < column + kLanes) {
        even[t - column] = 1;
      }
      const float* lower = c.dmatrix + t * W;
      int64_t s = column;
      for (; s + 1 < t; s += 2) {
        const float* before = c.dscores + s * W + column;
        even -= lower[s] * load_lanes(before);
        odd -= lower[s + 1] * load_lanes(before + W);
      }
      if (s < t) {
        even -= lower[s] * load_lanes(c.dscores + s * W + column);
      }
      *reinterpret_cast<Lanes*>(inverse) = even + odd;
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
    expect(value + c.call.v.head, V * static_cast<int64_t>(sizeof(I)));
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

/// Makes -w and u, and, where wanted, what a chunk does to any state: (to_end k)ᵀ of both.
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
    T* solved = c.of_head(c.call.solved, r, c.call.longest, D);
    stream_rows(solved, c.first_out, Q, D);
    std::fill(solved + Q * D, solved + c.call.longest * D, T{});
    if (c.call.transitions == nullptr) {
      continue;
    }
    const auto rows = c.as_rows(c.tokens, c.first_out, Q, D);
    const auto made = c.as_right(c.right, rows, Q, c.depth(), D);

    c.scale_rows(c.scaled, c.rows_k, c.to_end);
    const auto written = c.as_left_transposed(c.left, c.scaled, K, K);
    c.multiply(K, K, c.depth(), written, made, c.changed, K);
    for (int64_t i = 0; i < K; ++i) {
      c.changed[i * K + i] += c.from_state[Q - 1];
    }
    stream_rows(c.floats_of(c.call.transitions, r, K), c.changed, K, K);
    c.multiply(K, V, c.depth(), written, c.columns_from(made, K), c.changed, V);
    stream_rows(c.floats_of(c.call.updates, r, V), c.changed, K, V);
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
    c.expect_next(c.call.solved, r, t, c.call.longest, c.call.key_dim + c.call.dim);
    c.expect_next(c.call.inverse, r, t, c.call.longest, c.call.longest);
    if (c.call.behind != nullptr) {
      c.expect_next(c.call.states, r, t, c.call.key_dim, c.call.dim);
      c.expect_next(c.call.behind, r, t, c.call.key_dim, c.call.dim);
      c.expect_next(c.call.writes, r, t, c.call.longest, c.call.dim);
      c.expect_next(c.call.du, r, t, c.call.longest, c.call.dim);
    }
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
    expect(value + c.call.v.head, V * static_cast<int64_t>(sizeof(I)));
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

/// The gradients of -w and u in second_out, and of what is written to the state in first_out, from
/// those of transitions and updates. Returns that of the decay of the whole chunk.
template <class I, class T>
double through_transitions(const DeltaChunk<I, T>& c, int64_t r) {
  const int64_t K = c.call.key_dim, V = c.call.dim, D = K + V, Q = c.rows;
  const ChunkMatrix<T> written{c.scaled, K}, solved = c.solved(r);
  float* dsolved = c.second_out;
  widen(dsolved, D, c.of_head(c.call.dsolved, r, c.call.longest, D), Q, D);
  const float* gradient = c.floats_of(c.call.dtransitions, r, K);
  double dleft = 0;
  for (int64_t i = 0; i < K; ++i) {
    dleft += gradient[i * K + i];
  }
  auto rows = c.as_rows(c.rows_state, gradient, K, K);
  c.multiply(Q, K, K, written, c.as_right(c.right_state, rows, K, K, K), dsolved, D, true);
  auto across = c.as_right_transposed(c.right_state, rows, K, K);
  c.multiply(Q, K, K, solved, across, c.first_out, K);
  rows = c.as_rows(c.rows_state, c.floats_of(c.call.dupdates, r, V), K, V);
  c.multiply(Q, V, K, written, c.as_right(c.right_state, rows, K, K, V), dsolved + K, D, true);
  across = c.as_right_transposed(c.right_state, rows, K, V);
  c.multiply(Q, K, V, {solved.data + K, D}, across, c.first_out, K, true);
  return dleft;
}

/// The same from the gradients of what tokens write, and of the states behind chunks.
template <class I, class T>
double through_states(const DeltaChunk<I, T>& c, int64_t r) {
  const int64_t K = c.call.key_dim, V = c.call.dim, D = K + V, Q = c.rows;
  const auto state = c.state(c.call.states, r), behind = c.state(c.call.behind, r);
  const auto du = c.values(c.call.du, r);
  auto across = c.as_right_transposed(c.right_state, state, K, V);
  c.multiply(Q, K, V, du, across, c.second_out, D);
  widen(c.second_out + K, D, du.data, Q, V);
  across = c.as_right_transposed(c.right_state, behind, K, V);
  c.multiply(Q, K, V, c.values(c.call.writes, r), across, c.first_out, K);
  double dleft = 0;
  for (int64_t k = 0; k < K; ++k) {
    const T *one = state.data + k * V, *other = behind.data + k * V;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < V; ++i) {
      sum += wide(one[i]) * wide(other[i]);
    }
    dleft += sum;
  }
  return dleft;
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
    const bool passed = c.call.dtransitions == nullptr;
    through_written(c, passed ? through_states(c, r) : through_transitions(c, r));

    // Through the system: of its right sides, and of its matrix.
    auto rows = c.as_rows(c.tokens, c.second_out, Q, D);
    const auto sides = c.as_right(c.right, rows, Q, c.depth(), D);
    const auto inverse = c.as_left_transposed(c.left, c.inverse(r), c.call.longest, Q);
    float* dsides = c.first_out;
    c.multiply(Q, D, c.depth(), inverse, sides, dsides, D);
    rows = c.as_rows(c.tokens, dsides, Q, D);
    c.multiply(Q, Q, D, rows, c.as_right_transposed(c.right, c.solved(r), Q, D), c.dmatrix, W);
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

} // namespace mh::kernels::MH_LEVEL
