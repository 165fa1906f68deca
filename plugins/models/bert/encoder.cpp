#include "encoder.hpp"

#include <megahost/nn/dropout.hpp>
#include <megahost/random.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros_like.h>

#include <utility>

namespace mh::bert {

BertEmbedding::BertEmbedding(
    Builder& builder,
    const EncoderConfig& c,
    int64_t positions,
    std::unique_ptr<NormPart> norm,
    std::string_view site
)
    : embed_(embed_axis(c))
    , dropout_(c.dropout)
    , site_(random_key(0, site))
    , words_(table(builder, "word", {axis::vocab, *c.vocab}, *c.embedding_std))
    , norm_(std::move(norm)) {
  if (c.token_types > 0) {
    types_ = std::make_unique<Embedding>(
        table(builder, "token_type", {{"token_types"}, c.token_types}, *c.embedding_std)
    );
  }
  if (c.positions == "learned") {
    positions_ = std::make_unique<Embedding>(
        table(builder, "position", {axis::position, positions}, *c.embedding_std)
    );
  }
}

Embedding BertEmbedding::table(Builder& builder, const char* name, Axis rows, double std) const {
  return builder.below(name, [&] { return Embedding(builder, rows, embed_, std); });
}

at::Tensor BertEmbedding::forward(
    const at::Tensor& tokens, const at::Tensor* types, StepContext& context
) const {
  at::Tensor x = words_.forward(tokens, context);
  if (types_ != nullptr) {
    x = x + types_->forward(types != nullptr ? *types : at::zeros_like(tokens), context);
  }
  if (positions_ != nullptr) {
    x = x + positions_->forward(context.positions(), context);
  }
  if (norm_ != nullptr) {
    x = norm_->forward(x, context);
  }
  return dropout(x, embed_, dropout_, site_, context);
}

} // namespace mh::bert
