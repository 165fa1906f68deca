#include "core/decoder/token_embedding.hpp"

#include "megahost/nn/dropout.hpp"

#include <ATen/TensorOperators.h>

#include <cmath>

namespace mh {

namespace {

Embedding
table(Builder& builder, const DecoderConfig& c, const char* name, Axis rows, bool made_before) {
  const Axis embed{axis::embed, c.hidden};
  if (made_before) {
    const std::string weight = std::string("embedding.") + name + ".weight";
    return Embedding(builder, rows, embed, builder.shared(weight));
  }
  const auto names = builder.scope(name);
  return Embedding(builder, rows, embed, c.embedding_std.value_or(c.init_std));
}

} // namespace

TokenEmbedding::TokenEmbedding(
    Builder& builder, const DecoderConfig& c, int64_t seq_length, bool made_before, uint64_t site
)
    : embed_{axis::embed, c.hidden}
    , scale_(c.scaled_embedding ? std::sqrt(static_cast<double>(c.hidden)) : 1)
    , dropout_(c.dropout)
    , site_(site)
    , last_(seq_length - 1)
    , tokens_(table(builder, c, "word", {axis::vocab, *c.vocab}, made_before)) {
  if (c.positions == "learned") {
    positions_ = std::make_unique<Embedding>(
        table(builder, c, "position", {axis::position, seq_length}, made_before)
    );
  }
}

at::Tensor
TokenEmbedding::forward(const at::Tensor& tokens, int64_t ahead, StepContext& context) const {
  at::Tensor x = tokens_.forward(tokens, context);
  if (scale_ != 1) {
    x = x * scale_;
  }
  if (positions_ != nullptr) {
    const at::Tensor own = context.positions();
    x = x + positions_->forward(ahead == 0 ? own : (own + ahead).clamp_max(last_), context);
  }
  return dropout(x, embed_, dropout_, site_, context);
}

} // namespace mh
