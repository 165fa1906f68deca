#include "core/decoder/multi_token_prediction.hpp"

#include "megahost/random.hpp"

#include <ATen/ops/cat.h>

namespace mh {

namespace {

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
    , embedding_norm_(builder.below("embedding_norm", [&] { return norm(builder); }))
    , hidden_norm_(builder.below("hidden_norm", [&] { return norm(builder); }))
    , projection_(builder, projection_spec(c))
    , layer_(builder.below("layer", [&] { return layer(builder); }))
    , norm_(builder.below("norm", [&] { return final_norm(builder); })) {}

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
