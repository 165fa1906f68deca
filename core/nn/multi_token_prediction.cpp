#include "core/nn/multi_token_prediction.hpp"

#include "megahost/random.hpp"

#include <ATen/ops/cat.h>

namespace mh {

namespace {

/// Runs `make` with names below `scope`.
template <class Make>
auto below(Builder& builder, std::string_view scope, const Make& make) {
  const auto names = builder.scope(scope);
  return make(builder);
}

LinearSpec projection_spec(const DecoderConfig& c) {
  return {
      .in = {{"mtp"}, 2 * c.hidden},
      .outs = {{"projection", {axis::embed, c.hidden}}},
      .std = c.init_std};
}

} // namespace

MultiTokenPrediction::MultiTokenPrediction(
    Builder& builder,
    const DecoderConfig& c,
    int64_t seq_length,
    int64_t depth,
    const MakeNorm& norm,
    const MakeNorm& final_norm,
    const MakeLayer& layer
)
    : embed_{axis::embed, c.hidden}
    , depth_(depth)
    , words_(
          builder,
          c,
          seq_length,
          /*made_before=*/true,
          random_key(0, builder.global_name("embedding"))
      )
    , embedding_norm_(below(builder, "embedding_norm", norm))
    , hidden_norm_(below(builder, "hidden_norm", norm))
    , projection_(builder, projection_spec(c))
    , layer_(below(builder, "layer", layer))
    , norm_(below(builder, "norm", final_norm)) {}

at::Tensor MultiTokenPrediction::forward(const at::Tensor& hidden, StepContext& context) const {
  const at::Tensor next = words_.forward(context.array(name() + "_tokens"), depth_, context);
  const at::Tensor both =
      at::cat({embedding_norm_->forward(next), hidden_norm_->forward(hidden)}, -1);
  const State in("hidden", projection_.forward(both, context), context.dims(embed_));
  const at::Tensor x = layer_->forward(in, context)["hidden"].value;
  return norm_ == nullptr ? x : norm_->forward(x);
}

std::string MultiTokenPrediction::name(int64_t depth) {
  return "mtp_" + std::to_string(depth);
}

} // namespace mh
