#pragma once
// The whole model's numbers from what ranks hold, and how far two layouts may lie apart; small
// models and batches to get them from.

#include "megahost/builder.hpp"
#include "megahost/context.hpp"
#include "megahost/mesh.hpp"
#include "megahost/nn/decoder.hpp"
#include "tests/dist/placed.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

namespace mh {

inline constexpr int64_t kWords = 50; // words of the vocabulary

inline DecoderConfig small_gpt(int64_t layers) {
  DecoderConfig c;
  c.layers = layers;
  c.hidden = 24;
  c.heads = 4;
  c.dropout = 0.1;
  c.attention_dropout = 0.1;
  c.init_std = 0.3;
  return c;
}

inline DecoderConfig small_llama(int64_t layers) {
  DecoderConfig c;
  c.layers = layers;
  c.hidden = 24;
  c.heads = 4;
  c.kv_heads = 2;
  c.ffn_hidden = 40;
  c.norm = "rmsnorm";
  c.activation = "swiglu";
  c.positions = "rope";
  c.bias = false;
  c.init_std = 0.3;
  return c;
}

/// A data rank's part of microbatch `number`: `samples` samples of `seq` tokens, the first one's
/// last masked in every second microbatch.
inline Batch batch_of(const Group& dp, int64_t seq, int64_t samples, int64_t number = 0) {
  const at::Tensor tokens =
      (at::arange(seq * samples).view({seq, samples}) * 7 + number * 11) % kWords;
  at::Tensor mask = at::ones({seq, samples});
  mask[seq - 1][0].fill_(number % 2);
  Batch batch{
      .arrays =
          {{"tokens", dp.slice(tokens, 1).contiguous()},
           {"labels", dp.slice((tokens * 3 + 1) % kWords, 1).contiguous()},
           {"loss_mask", dp.slice(mask, 1).contiguous()}},
      .samples = {},
      .seq = seq,
      .batch = samples};
  const int64_t own = samples / dp.size();
  for (int64_t i = 0; i < own; ++i) {
    batch.samples.push_back(number * samples + dp.index() * own + i);
  }
  return batch;
}

/// The result of one step of the global model.
struct Whole {
  double loss = 0, evaluation = 0, squared_norm = 0;
  std::map<std::string, at::Tensor> gradients, values;
};

/// Writes this rank's slice into the global tensor; ranks that hold the same must agree bit for bit
/// if `same` is asked for.
inline void
put(std::map<std::string, at::Tensor>& all, const Piece& piece, const at::Tensor& local, bool same
) {
  constexpr double kNothing = 1e9;
  auto& whole = all[piece.name];
  if (!whole.defined()) {
    whole = at::ones(piece.global_shape, at::kDouble) * kNothing; // what no rank writes shows
  }
  const at::Tensor slice = slice_of(whole, piece);
  if (same && slice.numel() > 0 && slice.max().item<double>() < kNothing) {
    CHECK_MESSAGE(at::equal(slice, local), piece.name);
  }
  slice.copy_(local);
}

/// Losses and gradients within `bound`, values to the bit.
inline void compare(const Whole& one, const Whole& other, double bound = 1e-12) {
  CHECK(other.loss == doctest::Approx(one.loss).epsilon(bound));
  CHECK(other.evaluation == doctest::Approx(one.evaluation).epsilon(bound));
  CHECK(other.squared_norm == doctest::Approx(one.squared_norm).epsilon(10 * bound));
  REQUIRE(other.gradients.size() == one.gradients.size());
  for (const auto& [name, gradient] : one.gradients) {
    CAPTURE(name);
    const double norm = gradient.norm().item().toDouble();
    const double least = 1e-3 * std::sqrt(one.squared_norm); // key biases have none
    CHECK(
        (other.gradients.at(name) - gradient).norm().item().toDouble() <=
        bound * std::max(norm, least)
    );
  }
  REQUIRE(other.values.size() == one.values.size());
  for (const auto& [name, value] : one.values) {
    CHECK_MESSAGE(at::equal(other.values.at(name), value), name);
  }
}

} // namespace mh
