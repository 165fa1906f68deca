/// Mixtures of experts (Mixtral, Qwen3-MoE, DeepSeek-V3, GPT-OSS): llama's blocks with experts in
/// the feed-forward.

#define MH_PLUGIN_LICENSE "Apache-2.0"
#include "../megatron_experts.hpp"
#include "config.hpp"
#include "hugging_face.hpp"

#include <megahost/plugin.hpp>

namespace {

class Moe : public mh::Decoder {
public:
  using Config = MoeConfig;

  static void fields(mh::Fields<Config>& f) { moe_fields(f); }

  static mh::HfMapping hugging_face_config() { return moe_hugging_face(); }

  Moe(const Config& config, const Args& args)
      : Decoder(config, args)
      , moe_(config) {}

  /// `transformers` Mixtral where the softmax is taken over the chosen experts, DeepSeek-V3 where
  /// scores are sigmoids; GPT-OSS where experts have biases; else Qwen3-MoE, and Qwen2-MoE with a
  /// shared expert.
  [[nodiscard]] std::vector<mh::HfTensor> hugging_face() const override {
    if (moe_.bias) {
      return gpt_oss();
    }
    const bool mixtral = moe_.router == "topk_softmax";
    const bool gated = moe_.shared_gate == !deepseek();
    if ((moe_.shared_hidden && (mixtral || !gated)) || moe_.activation != "swiglu" ||
        (deepseek() && (!moe_.kv_rank || !moe_.rates_groups_by_two())) || moe_.expert_latent) {
      return {};
    }
    return llama_names(
        config(),
        [&](int64_t layer, const std::string& theirs, const std::string& ours, auto& map) {
          if (!moe_.is_moe(layer)) {
            add_feed_forward_names(moe_, theirs + "mlp.", ours + "mlp.", map);
            return;
          }
          const std::string folder = theirs + (mixtral ? "block_sparse_moe." : "mlp.");
          const mh::ExpertNames names =
              mixtral ? mh::ExpertNames{.gate = "w1", .up = "w3", .down = "w2"} : mh::ExpertNames{};
          add_expert_names(moe_, /*gated=*/true, folder, ours + "mlp.", map, names);
          if (moe_.shared_hidden) {
            const char* shared = deepseek() ? "shared_experts." : "shared_expert.";
            add_feed_forward_names(moe_, folder + shared, ours + "mlp.shared.", map);
          }
          if (moe_.shared_gate) {
            map.push_back({folder + "shared_expert_gate.weight", {ours + "mlp.shared_gate.weight"}}
            );
          }
        },
        /*predicts_further=*/deepseek()
    );
  }

  /// Experts with their biases have no counterpart there: its routers have none. Those of latents
  /// need Transformer Engine there, and are not read.
  [[nodiscard]] std::vector<mh::HfTensor> megatron() const override {
    if (moe_.bias || moe_.expert_latent) {
      return {};
    }
    return megatron_names(
        config(),
        [&](int64_t layer, const std::string& theirs, const std::string& ours, Names& map) {
          if (!moe_.is_moe(layer)) {
            add_megatron_feed_forward(moe_, theirs + "mlp.", ours + "mlp.", map);
            return;
          }
          add_megatron_experts(moe_, theirs + "mlp.", ours + "mlp.", map);
        }
    );
  }

  /// From a llama: each expert begins as the dense model's feed-forward, where it is as wide.
  [[nodiscard]] std::vector<mh::Upcycled> upcycled() const override {
    std::vector<mh::Upcycled> map = Decoder::upcycled();
    for (int64_t i = 0; i < layers(); ++i) {
      if (!moe_.is_moe(i) || moe_.expert_latent) {
        continue;
      }
      const std::string mlp = "layers." + std::to_string(i) + ".mlp.";
      const bool gated = mh::is_gated(mh::activation_kind(moe_.activation));
      std::vector<std::string> parts{"weight"};
      if (moe_.bias) {
        parts.emplace_back("bias");
        map.push_back({mlp + "router.logit_bias", {}});
      }
      for (const auto& part : parts) {
        const std::string up = mlp + "up." + part;
        if (gated) {
          map.push_back({mlp + "experts.gate_up." + part, {mlp + "gate." + part, up}});
        } else {
          map.push_back({mlp + "experts.up." + part, {up}});
        }
        map.push_back({mlp + "experts.down." + part, {mlp + "down." + part}});
      }
      map.push_back({mlp + "router.weight", {}});
      if (moe_.has_bias()) {
        map.push_back({mlp + "router.bias", {}});
      }
    }
    return map;
  }

protected:
  [[nodiscard]] std::unique_ptr<mh::FeedForwardPart>
  feed_forward(int64_t index, mh::Builder& builder) const override {
    return moe_.is_moe(index)
               ? std::make_unique<mh::MixtureOfExperts>(builder, moe_.mixture(feed_forward_spec()))
               : Decoder::feed_forward(index, builder);
  }

private:
  using Names = std::vector<mh::HfTensor>;

  [[nodiscard]] bool deepseek() const { return moe_.router == "sigmoid"; }

  /// The names of `transformers` GptOssForCausalLM: all experts are one tensor, with units last, in
  /// which each unit's gate and up lie side by side.
  [[nodiscard]] Names gpt_oss() const {
    for (int64_t i = 0; i < layers(); ++i) {
      if (!moe_.is_moe(i)) {
        return {};
      }
    }
    if (!mh::is_gated(mh::activation_kind(moe_.activation)) || moe_.router != "topk_softmax" ||
        moe_.shared_hidden || moe_.has_bias()) {
      return {};
    }
    return llama_names(
        config(),
        [](int64_t, const std::string& theirs, const std::string& ours, auto& map) {
          const std::string router = theirs + "mlp.router.", experts = theirs + "mlp.experts.";
          const std::string own = ours + "mlp.experts.";
          map.push_back({router + "weight", {ours + "mlp.router.weight"}});
          map.push_back({router + "bias", {ours + "mlp.router.logit_bias"}});
          map.push_back(
              {.theirs = experts + "gate_up_proj", // [experts, hidden, units, gate or up]
               .ours = {own + "gate_up.weight"},
               .order = {0, 3, 2, 1},
               .joined = true}
          );
          map.push_back(
              {.theirs = experts + "gate_up_proj_bias",
               .ours = {own + "gate_up.bias"},
               .order = {0, 2, 1},
               .joined = true}
          );
          map.push_back(
              {.theirs = experts + "down_proj", .ours = {own + "down.weight"}, .order = {0, 2, 1}}
          );
          map.push_back({experts + "down_proj_bias", {own + "down.bias"}});
        }
    );
  }

  Config moe_;
};

} // namespace

MH_PLUGIN("org.megahost.moe", "0.1.0", "mixtures of experts", [](mh::Registry& registry) {
  registry.add<Moe>(
      "moe",
      "llama's blocks with experts in the feed-forward: Mixtral, Qwen3-MoE, DeepSeek-V3, GPT-OSS"
  );
});
