#pragma once
/// Multi-token prediction: a decoder learns not only the next token but some of those behind it.

#include "core/decoder/token_embedding.hpp"
#include "megahost/architecture.hpp"
#include "megahost/nn/linear.hpp"
#include "megahost/nn/norm.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace mh {

/// Module `depth`, from 1: of what the model, or the module before, makes of a token, and of the
/// embedding of the token `depth` further on, it makes what the output layer scores the token behind
/// that one by:
///
///   norm(layer(W [norm(embedding), norm(hidden)]))
///
/// It reads the array "mtp_DEPTH_tokens"; its loss is over "mtp_DEPTH_labels". W is whole on all
/// tensor-parallel ranks, each of which multiplies its own tokens where sequence parallelism shards
/// them.
///
/// Shapes:  hidden [seq, batch, embed] -> the same
/// Source:  arXiv:2412.19437 section 2.2
class MultiTokenPrediction {
public:
  using MakeNorm = std::function<std::unique_ptr<NormPart>(Builder&)>;
  using MakeLayer = std::function<std::unique_ptr<Block>(Builder&)>;

  /// `final_norm` may make null.
  MultiTokenPrediction(
      Builder& builder,
      const DecoderConfig& c,
      int64_t seq_length,
      int64_t depth,
      const MakeNorm& norm,
      const MakeNorm& final_norm,
      const MakeLayer& layer
  );

  [[nodiscard]] at::Tensor forward(const at::Tensor& hidden, StepContext& context) const;

  /// "mtp_1": what the names of its arrays and of its loss begin with.
  [[nodiscard]] static std::string name(int64_t depth);

  [[nodiscard]] std::string name() const { return name(depth_); }

private:
  Axis embed_;
  int64_t depth_;
  TokenEmbedding words_;
  std::unique_ptr<NormPart> embedding_norm_, hidden_norm_;
  Linear projection_;
  std::unique_ptr<Block> layer_;
  std::unique_ptr<NormPart> norm_; // or null
};

} // namespace mh
