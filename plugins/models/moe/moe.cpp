/// Mixtures of experts (Mixtral, Qwen3-MoE, DeepSeek's kind of router): llama's blocks with experts
/// in the feed-forward.

#define MH_PLUGIN_LICENSE "Apache-2.0"
#include "config.hpp"

#include <megahost/plugin.hpp>

namespace {

class Moe : public mh::Decoder {
public:
  using Config = MoeConfig;

  static void fields(mh::Fields<Config>& f) { moe_fields(f); }

  Moe(const Config& config, const Args& args)
      : Decoder(config, args)
      , moe_(config) {}

  /// `transformers` Mixtral where the soft max is taken over the chosen experts; else Qwen3-MoE,
  /// and Qwen2-MoE with a shared expert.
  [[nodiscard]] std::vector<mh::HfTensor> hugging_face() const override {
    const bool mixtral = moe_.router == "topk_softmax";
    if ((mixtral && moe_.shared_hidden) || moe_.router == "sigmoid" ||
        moe_.activation != "swiglu") {
      return {};
    }
    return llama_names(
        config(),
        [&](int64_t layer, const std::string& theirs, const std::string& ours, auto& map) {
          if (!moe_.is_moe(layer)) {
            for (const char* part : {"gate", "up", "down"}) {
              map.push_back(
                  {theirs + "mlp." + part + "_proj.weight", {ours + "mlp." + part + ".weight"}}
              );
            }
            return;
          }
          const std::string folder = theirs + (mixtral ? "block_sparse_moe." : "mlp.");
          map.push_back({folder + "gate.weight", {ours + "mlp.router.weight"}});
          const std::string up = ours + "mlp.experts.gate_up.weight";
          const std::string down = ours + "mlp.experts.down.weight";
          for (int64_t e = 0; e < moe_.experts; ++e) {
            const std::string expert = folder + "experts." + std::to_string(e) + ".";
            const auto name = [&](const char* one, const char* other) {
              return expert + (mixtral ? one : other) + ".weight";
            };
            map.push_back({name("w1", "gate_proj"), {up}, false, {e, 0}});
            map.push_back({name("w3", "up_proj"), {up}, false, {e, 1}});
            map.push_back({name("w2", "down_proj"), {down}, false, {e}});
          }
          for (const char* part : {"gate", "up", "down"}) {
            if (moe_.shared_hidden) {
              map.push_back(
                  {folder + "shared_expert." + part + "_proj.weight",
                   {ours + "mlp.shared." + part + ".weight"}}
              );
            }
          }
          if (moe_.shared_gate) {
            map.push_back({folder + "shared_expert_gate.weight", {ours + "mlp.shared_gate.weight"}}
            );
          }
        }
    );
  }

  /// From a llama: each expert begins as the dense model's feed-forward.
  [[nodiscard]] std::vector<mh::Upcycled> upcycled() const override {
    std::vector<mh::Upcycled> map;
    for (int64_t i = 0; i < layers(); ++i) {
      if (!moe_.is_moe(i)) {
        continue;
      }
      const std::string mlp = "layers." + std::to_string(i) + ".mlp.";
      const std::string up = mlp + "up.weight";
      if (mh::is_gated(mh::activation_kind(moe_.activation))) {
        map.push_back({mlp + "experts.gate_up.weight", {mlp + "gate.weight", up}});
      } else {
        map.push_back({mlp + "experts.up.weight", {up}});
      }
      map.push_back({mlp + "experts.down.weight", {mlp + "down.weight"}});
      map.push_back({mlp + "router.weight", {}});
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
  Config moe_;
};

} // namespace

MH_PLUGIN("org.megahost.moe", "0.1.0", "mixtures of experts", [](mh::Registry& registry) {
  registry.add<Moe>("moe", "llama's blocks with experts in the feed-forward: Mixtral, Qwen3-MoE");
});
