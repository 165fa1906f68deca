#pragma once
/// The fields, the first block and the names that BERT and retrievers of its towers have in common.

#include <megahost/builder.hpp>
#include <megahost/context.hpp>
#include <megahost/hugging_face.hpp>
#include <megahost/nn/decoder.hpp>
#include <megahost/nn/embedding.hpp>
#include <megahost/nn/norm.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace mh::bert {

struct EncoderConfig : DecoderConfig {
  EncoderConfig() {
    causal = false;
    activation = "gelu";
    norm_placement = "post";
    norm_eps = 1e-12;
    scaled_init = false;
  }

  int64_t token_types = 2;

  [[nodiscard]] bool post() const { return norm_placement == "post"; }
};

/// Declares the fields of a config that derives from EncoderConfig, and refuses those of decoders
/// that an encoder does not have.
template <class C>
void encoder_fields(Fields<C>& f) {
  decoder_fields(f);
  f.add(
       "token_types",
       &C::token_types,
       "kinds of passages that tokens belong to; 0: they are not told apart"
  )
      .at_least(0);
  f.check("causal", [](const C& c) -> std::string {
    return c.causal ? "BERT reads to both sides, and with causal = true it would be a decoder; use "
                      "gpt or llama"
                    : "";
  });
  f.check("norm_placement", [](const C& c) -> std::string {
    return c.norm_placement != "pre" && c.norm_placement != "post"
               ? "BERT's norms are before a part (pre) or behind the sum "
                 "(post)"
               : "";
  });
  f.check("scaled_embedding", [](const C& c) -> std::string {
    return c.scaled_embedding ? "BERT's embedding is a sum with a norm or dropout behind it, and "
                                "has no scale"
                              : "";
  });
}

[[nodiscard]] inline Axis embed_axis(const EncoderConfig& c) {
  return {axis::embed, c.hidden};
}

/// Words, positions and token types, added up; a norm where norms come after sums; dropout.
class BertEmbedding {
public:
  /// `positions`: rows of the table of learned positions; `norm` may be null; `site` tells its
  /// dropout from others'.
  BertEmbedding(
      Builder& builder,
      const EncoderConfig& c,
      int64_t positions,
      std::unique_ptr<NormPart> norm,
      std::string_view site
  );

  /// Shapes:  tokens and types [seq, batch] int64, of the context's current sequence -> [seq,
  ///          batch, embed]; without `types` all tokens are of type 0, if there are types
  [[nodiscard]] at::Tensor
  forward(const at::Tensor& tokens, const at::Tensor* types, StepContext& context) const;

private:
  [[nodiscard]] Embedding table(Builder& builder, const char* name, Axis rows, double std) const;

  Axis embed_;
  double dropout_;
  uint64_t site_;
  Embedding words_;
  std::unique_ptr<Embedding> types_;     // or null
  std::unique_ptr<NormPart> norm_;       // or null
  std::unique_ptr<Embedding> positions_; // or null
};

/// transformers' and our prefixes of one encoder's names.
struct EncoderNames {
  std::string theirs; ///< before "embeddings." and "encoder."
  std::string tower;  ///< our name of it, behind "embedding.", "layers.N." and "head."
};

/// Whether transformers' BERT has these complete fields.
[[nodiscard]] bool has_counterpart(const EncoderConfig& config);

/// Adds a weight and its bias.
void add_names(std::vector<HfTensor>& map, const std::string& theirs, const std::string& ours);

/// Adds embeddings, layers and the final norm, where there is one.
void add_encoder_names(
    std::vector<HfTensor>& map, const EncoderConfig& config, const EncoderNames& names
);

/// The keys of config.json that say the sizes of an encoder.
[[nodiscard]] std::vector<HfKey> encoder_keys(int64_t vocab, int64_t hidden, int64_t layers);

/// Keys that change no number of an encoder's forward pass.
[[nodiscard]] std::vector<std::string> harmless_encoder_keys();

} // namespace mh::bert
