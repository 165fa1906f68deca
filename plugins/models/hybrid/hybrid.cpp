/// Hybrid decoders (Mamba-2, Nemotron-H, Qwen3-Next): layers of one part each, a mixer of Mamba-2 or of
/// gated DeltaNet, attention, a feed-forward or a mixture of experts, in the order of a pattern.

#define MH_PLUGIN_LICENSE "Apache-2.0"
#include "config.hpp"
#include "delta_net.hpp"
#include "mamba.hpp"

#include <megahost/nn/dropout.hpp>
#include <megahost/plugin.hpp>
#include <megahost/random.hpp>

#include <ATen/TensorOperators.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace mh::hybrid {
namespace {

constexpr auto kHidden = "hidden";

/// x + part(norm(x)).
class HybridLayer : public Block {
public:
  using Part = std::function<at::Tensor(const at::Tensor& x, StepContext& context)>;

  /// Args:    name: of the part's parameters
  ///          redone: the part for recompute
  HybridLayer(
      Builder& builder,
      Axis embed,
      double dropout,
      std::unique_ptr<NormPart> norm,
      const char* name,
      const char* redone,
      Part part
  )
      : embed_(embed)
      , dropout_(dropout)
      , site_(random_key(0, builder.global_name(name)))
      , norm_(std::move(norm))
      , redone_(redone)
      , part_(std::move(part)) {}

  [[nodiscard]] State forward(const State& state, StepContext& context) const override {
    const at::Tensor& x = state[kHidden].value;
    StepContext* step = &context;
    const at::Tensor branch = context.part(redone_, {x}, [this, step](const auto& in) {
      const auto run = [this, step](const at::Tensor& y) { return part_(y, *step); };
      return norm_->forward(in[0], *step, run);
    });
    return state.with(kHidden, x + dropout(branch, embed_, dropout_, site_, context));
  }

  [[nodiscard]] bool reads_cache() const override { return true; }

private:
  Axis embed_;
  double dropout_;
  uint64_t site_;
  std::unique_ptr<NormPart> norm_;
  const char* redone_;
  Part part_;
};

/// A part as the layer calls it, which keeps it.
template <class T>
HybridLayer::Part kept_part(std::shared_ptr<const T> part) {
  return [part = std::move(part)](const at::Tensor& x, StepContext& context) {
    return part->forward(x, context);
  };
}

/// Parameters: those of a decoder (nn/decoder.hpp) outside of the layers, and of layer N
///
///   layers.N.norm.weight   [hidden]
///   layers.N.mamba.*       M (mamba.hpp)
///   layers.N.delta.*       G (delta_net.hpp)
///   layers.N.attention.*   *, as a decoder's
///   layers.N.mlp.*         -, as a decoder's; E (nn/experts.hpp)
///
/// Source:  arXiv:2405.21060 (Mamba-2), arXiv:2504.03624 (Nemotron-H), arXiv:2412.06464 (gated
///          DeltaNet)
class Hybrid : public Decoder {
public:
  using Config = HybridConfig;

  static void fields(Fields<Config>& f) { hybrid_fields(f); }

  static HfMapping hugging_face_config() { return hugging_face_mapping(); }

  static std::vector<std::string> recompute_parts() { return {"mixer"}; }

  Hybrid(const Config& config, const Args& args)
      : Decoder(config, args)
      , own_(config) {
    static_cast<DecoderConfig&>(own_) = Decoder::config(); // with absent fields filled in
  }

  [[nodiscard]] std::unique_ptr<Block> layer(int64_t index, Builder& builder) const override {
    auto before = builder.below("norm", [&] { return norm(builder); });
    const char kind = own_.kind(index);
    const char* name = name_of(kind);
    HybridLayer::Part part = builder.below(name, [&] { return part_of(kind, index, builder); });
    return std::make_unique<HybridLayer>(
        builder,
        Axis{axis::embed, own_.hidden},
        own_.dropout,
        std::move(before),
        name,
        kind == kMamba || kind == kDelta ? "mixer" : name,
        std::move(part)
    );
  }

  [[nodiscard]] std::vector<HfTensor> hugging_face() const override {
    return hugging_face_names(own_);
  }

  [[nodiscard]] std::vector<HfTensor> megatron() const override { return megatron_names(own_); }

private:
  static const char* name_of(char kind) {
    return kind == kMamba       ? "mamba"
           : kind == kDelta     ? "delta"
           : kind == kAttention ? "attention"
                                : "mlp";
  }

  [[nodiscard]] HybridLayer::Part part_of(char kind, int64_t index, Builder& builder) const {
    switch (kind) {
    case kMamba:
      return kept_part(std::make_shared<const Mamba>(builder, mamba_spec()));
    case kDelta:
      return kept_part(std::make_shared<const DeltaNet>(builder, delta_spec()));
    case kAttention:
      return kept_part<AttentionPart>(attention(index, builder));
    case kMixture:
      return kept_part(std::make_shared<const MixtureOfExperts>(
          builder, own_.mixture(feed_forward_spec(), own_.mixtures())
      ));
    default:
      return kept_part<FeedForwardPart>(feed_forward(index, builder));
    }
  }

  [[nodiscard]] MambaSpec mamba_spec() const {
    return {
        .embed = {axis::embed, own_.hidden},
        .heads = own_.mamba_head_count(),
        .head_dim = own_.mamba_head_dim,
        .groups = own_.mamba_groups,
        .state = own_.mamba_state,
        .taps = own_.mamba_taps,
        .conv_bias = own_.mamba_conv_bias,
        .bias = own_.bias,
        .least_step = own_.mamba_least_step,
        .norm_eps = own_.norm_eps,
        .chunk = own_.mamba_chunk,
        .std = own_.init_std,
        .out_std = feed_forward_spec().out_std};
  }

  [[nodiscard]] DeltaSpec delta_spec() const {
    return {
        .embed = {axis::embed, own_.hidden},
        .key_heads = own_.delta_key_heads,
        .heads = own_.delta_head_count(),
        .key_dim = own_.delta_key_dim,
        .dim = own_.delta_dim,
        .taps = own_.delta_taps,
        .bias = own_.bias,
        .norm_eps = own_.norm_eps,
        .chunk = own_.delta_chunk,
        .std = own_.init_std,
        .out_std = feed_forward_spec().out_std};
  }

  Config own_;
};

} // namespace
} // namespace mh::hybrid

MH_PLUGIN("org.megahost.hybrid", "0.1.0", "hybrid decoder models", [](mh::Registry& registry) {
  registry.add<mh::hybrid::Hybrid>(
      "hybrid",
      "decoder of Mamba-2, gated DeltaNet, attention, feed-forwards and mixtures by a pattern: "
      "Mamba-2, Nemotron-H, Qwen3-Next"
  );
});
