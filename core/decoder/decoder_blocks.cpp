#include "megahost/nn/decoder_blocks.hpp"

#include "core/decoder/multi_token_prediction.hpp"
#include "core/decoder/token_embedding.hpp"
#include "megahost/error.hpp"
#include "megahost/nn/dropout.hpp"
#include "megahost/random.hpp"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <utility>

namespace mh {

namespace {

constexpr auto kHidden = "hidden"; // the residual stream

const DecoderConfig& with_vocab(const DecoderConfig& config) {
  if (!config.vocab) {
    throw Error("a decoder's embedding and output layer need a vocabulary", "give model.vocab");
  }
  return config;
}

} // namespace

DecoderEmbedding::DecoderEmbedding(
    Builder& builder, const DecoderConfig& config, int64_t seq_length
)
    : embed_{axis::embed, config.hidden}
    , words_(std::make_unique<TokenEmbedding>(
          builder, with_vocab(config), seq_length, /*made_before=*/false, random_key(0, "embedding")
      )) {}

DecoderEmbedding::~DecoderEmbedding() = default;

State DecoderEmbedding::forward(const State&, StepContext& context) const {
  const at::Tensor x = words_->forward(context.array("tokens"), /*ahead=*/0, context);
  return {kHidden, x, context.dims(embed_)};
}

DecoderLayer::DecoderLayer(
    Builder& builder, Axis embed, NormPlacement placement, double dropout, const DecoderParts& parts
)
    : embed_(embed)
    , placement_(placement)
    , parallel_(parts.parallel)
    , shared_norm_(parts.shared_norm)
    , dropout_(dropout)
    , attention_site_(random_key(0, builder.global_name("attention")))
    , cross_site_(random_key(0, builder.global_name("cross_attention")))
    , mlp_site_(random_key(0, builder.global_name("mlp")))
    , attention_norms_(norms(builder, "attention", parts))
    , attention_(builder.below("attention", [&] { return parts.attention(builder); })) {
  MH_ASSERT(
      !parallel_ || (placement != NormPlacement::post && !parts.cross_attention),
      "parallel branches have no norm between them, and no cross attention"
  );
  MH_ASSERT(
      !shared_norm_ || (parallel_ && placement == NormPlacement::pre),
      "only parallel branches read one norm, and it comes before them"
  );
  if (parts.cross_attention) {
    cross_norms_ = norms(builder, "cross_attention", parts);
    cross_attention_ =
        builder.below("cross_attention", [&] { return parts.cross_attention(builder); });
  }
  if (!shared_norm_) {
    mlp_norms_ = norms(builder, "mlp", parts);
  }
  mlp_ = builder.below("mlp", [&] { return parts.feed_forward(builder); });
}

DecoderLayer::Norms
DecoderLayer::norms(Builder& builder, const std::string& part, const DecoderParts& parts) const {
  const auto norm = [&](const std::string& name) {
    return builder.below(name, [&] { return parts.norm(builder); });
  };
  Norms made{norm(part + "_norm"), nullptr};
  if (placement_ == NormPlacement::sandwich) {
    made.second = norm(part + "_out_norm");
  }
  return made;
}

at::Tensor DecoderLayer::Stream::whole() const {
  return added.defined() ? sum + added : sum;
}

State DecoderLayer::forward(const State& state, StepContext& context) const {
  if (shared_norm_) {
    return state.with(kHidden, with_shared_norm(state[kHidden].value, context));
  }
  StepContext* step = &context;
  if (placement_ == NormPlacement::post) {
    // The norm behind a sum is read by the next part and the sum behind that: where norms are
    // recomputed, only the sum before is kept.
    using Inputs = std::vector<at::Tensor>;
    const auto sum = [this,
                      step](std::string_view name, const Inputs& in, uint64_t site, auto run) {
      return in.front() + mh::dropout(step->part(name, in, run), embed_, dropout_, site, *step);
    };
    const auto attend = [this, step](const Inputs& in) {
      return attention_->forward(in[0], *step);
    };
    const auto feed = [this, step, &sum](const at::Tensor& x) {
      return sum("mlp", {x}, mlp_site_, [this, step](const Inputs& in) {
        return mlp_->forward(in[0], *step);
      });
    };
    const auto look = [this, step, &sum, &state, &feed](const at::Tensor& x) {
      const Inputs in{x, state["memory"].value};
      const at::Tensor looked = sum("attention", in, cross_site_, [this, step](const Inputs& both) {
        return cross_attention_->forward(both[0], both[1], *step);
      });
      return cross_norms_.first->forward(looked, *step, feed);
    };
    const at::Tensor attended = sum("attention", {state[kHidden].value}, attention_site_, attend);
    const NormPart& norm = *attention_norms_.first;
    const at::Tensor fed = cross_attention_ != nullptr ? norm.forward(attended, context, look)
                                                       : norm.forward(attended, context, feed);
    return state.with(kHidden, mlp_norms_.first->forward(fed, context));
  }
  const auto run = [step](const auto& part) {
    return [step, &part](const at::Tensor& x, const auto&) { return part.forward(x, *step); };
  };
  const Stream in{state[kHidden].value, {}};
  Stream x =
      residual("attention", in, {}, run(*attention_), attention_norms_, attention_site_, context);
  if (cross_attention_ != nullptr) {
    const auto look = [this, step](const at::Tensor& y, const at::Tensor& memory) {
      return cross_attention_->forward(y, memory, *step);
    };
    const at::Tensor& memory = state["memory"].value;
    x = residual("attention", x, memory, look, cross_norms_, cross_site_, context);
  }
  const Stream& read = parallel_ ? in : x;
  const Stream y = residual("mlp", read, {}, run(*mlp_), mlp_norms_, mlp_site_, context);
  return state.with(kHidden, parallel_ ? y.whole() + x.added : y.whole());
}

bool DecoderLayer::reads_cache() const {
  return attention_->reads_cache() && mlp_->reads_cache() &&
         (cross_attention_ == nullptr || cross_attention_->reads_cache());
}

/// Parts that are recomputed keep the norm's result, which both read; where the norm is recomputed,
/// too, only x is kept.
at::Tensor DecoderLayer::with_shared_norm(const at::Tensor& x, StepContext& context) const {
  StepContext* step = &context;
  const auto branches = [this, step](const at::Tensor& normal) {
    const auto branch = [&](std::string_view name, const auto* part, uint64_t site) {
      const at::Tensor made = step->part(name, {normal}, [part, step](const auto& in) {
        return part->forward(in[0], *step);
      });
      return mh::dropout(made, embed_, dropout_, site, *step);
    };
    return branch("attention", attention_.get(), attention_site_) +
           branch("mlp", mlp_.get(), mlp_site_);
  };
  const NormPart& norm = *attention_norms_.first;
  if (context.redoes("norms")) {
    return x + norm.forward(x, context, branches);
  }
  const auto [normal, sum] = norm.of_sum(x, {});
  return sum + branches(normal);
}

/// x + part(x, memory), with a norm where the config wants it; memory may be undefined. A norm that
/// the plan does not recompute adds up the stream itself.
template <class Run>
DecoderLayer::Stream DecoderLayer::residual(
    std::string_view name,
    const Stream& stream,
    const at::Tensor& memory,
    const Run& part,
    const Norms& norms,
    uint64_t site,
    StepContext& context
) const {
  const bool before = placement_ == NormPlacement::pre || placement_ == NormPlacement::sandwich;
  const NormPart& norm = *norms.first;
  const NormPart* after = placement_ == NormPlacement::branch ? &norm : norms.second.get();
  const auto finished = [after](const at::Tensor& y, StepContext& step) {
    return after == nullptr ? y : after->forward(y, step);
  };
  const auto dropped = [&](const at::Tensor& branch) {
    return mh::dropout(branch, embed_, dropout_, site, context);
  };
  if (before && !context.redoes(name) && !context.redoes("norms")) {
    const auto [y, sum] = norm.of_sum(stream.sum, stream.added);
    return {sum, dropped(finished(part(y, memory), context))};
  }
  std::vector<at::Tensor> inputs{stream.whole()};
  if (memory.defined()) {
    inputs.push_back(memory);
  }
  StepContext* step = &context;
  const at::Tensor branch = context.part(name, inputs, [=, &norm](const auto& in) {
    const auto run = [&](const at::Tensor& x) {
      return part(x, in.size() > 1 ? in[1] : at::Tensor());
    };
    return finished(before ? norm.forward(in[0], *step, run) : run(in[0]), *step);
  });
  return {inputs.front(), dropped(branch)};
}

DecoderHead::DecoderHead(
    Builder& builder, const DecoderConfig& config, int64_t seq_length, const DecoderHeadParts& parts
)
    : norm_(builder.below("norm", [&] { return parts.final_norm(builder); }))
    , scale_(config.logit_scale)
    , vocab_{axis::vocab, *with_vocab(config).vocab}
    , gemms_(builder.flops.gemms)
    , head_(
          builder,
          {axis::embed, config.hidden},
          vocab_,
          config.init_std,
          config.tied ? "embedding.word.weight" : "",
          config.head_bias,
          config.logit_cap.value_or(0)
      )
    , mtp_weight_(
          config.mtp_loss_weight / static_cast<double>(std::max<int64_t>(1, config.mtp_layers))
      ) {
  MH_ASSERT(
      config.mtp_layers == 0 || (parts.norm && parts.layer),
      "multi-token prediction needs what makes its norms and its layers"
  );
  gemms_ = builder.flops.gemms - gemms_;
  const auto names = builder.scope("mtp");
  for (int64_t depth = 1; depth <= config.mtp_layers; ++depth) {
    const auto number = builder.scope(std::to_string(depth - 1));
    mtp_.emplace_back(
        builder, config, seq_length, depth, parts.norm, parts.final_norm, parts.layer
    );
    builder.flops.gemms += gemms_; // the output layer once more
  }
}

DecoderHead::~DecoderHead() = default;

State DecoderHead::forward(const State& state, StepContext& context) const {
  at::Tensor x = state[kHidden].value;
  const bool labels = context.has_array("labels");
  if (!labels && context.mode().last_logits) {
    x = x.narrow(0, x.size(0) - 1, 1);
  }
  if (norm_ != nullptr) {
    x = norm_->forward(x);
  }
  if (!labels) {
    Dims dims = context.dims(vocab_);
    dims[0].size = context.mode().last_logits ? 1 : dims[0].size;
    return {"logits", head_.logits(scaled(x), context), dims};
  }
  add_loss(x, "lm loss", "", 1, context);
  for (const MultiTokenPrediction& module : mtp_) {
    x = module.forward(x, context);
    add_loss(x, module.name() + " loss", module.name() + "_", mtp_weight_, context);
  }
  return {};
}

at::Tensor DecoderHead::scaled(const at::Tensor& x) const {
  return scale_ == 1 ? x : x * scale_;
}

void DecoderHead::add_loss(
    const at::Tensor& x,
    const std::string& name,
    const std::string& arrays,
    double weight,
    StepContext& context
) const {
  const std::string mask = arrays + "loss_mask";
  const at::Tensor sum = head_.loss(
      scaled(x),
      context.array(arrays + "labels"),
      context.array(mask),
      context,
      context.loss_factor(mask, weight)
  );
  context.add_loss({.name = name, .sum = sum, .over = mask, .weight = weight});
}

} // namespace mh
