#pragma once
/// The blocks of a decoder: its embedding, its layers, its output layer. Decoder makes them
/// (nn/decoder.hpp); an architecture of its own may take some and write the others.

#include "megahost/builder.hpp"
#include "megahost/context.hpp"
#include "megahost/export.hpp"
#include "megahost/model.hpp"
#include "megahost/nn/attention.hpp"
#include "megahost/nn/decoder_config.hpp"
#include "megahost/nn/feed_forward.hpp"
#include "megahost/nn/norm.hpp"
#include "megahost/nn/vocab.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

class MultiTokenPrediction;
class TokenEmbedding;

/// The first block: embeddings of tokens and, where they are learned, of positions, with dropout.
///
/// Parameters: `word.weight` [vocab, hidden], `position.weight` [seq_length, hidden]
/// Arrays:  "tokens" [seq, batch] int64
/// State:   {} -> "hidden" [seq, batch, embed]
class MH_API DecoderEmbedding : public Block {
public:
  /// Reads what `config` says of embeddings.
  ///
  /// Throws:  mh::Error if it gives no vocabulary
  DecoderEmbedding(Builder& builder, const DecoderConfig& config, int64_t seq_length);
  ~DecoderEmbedding() override;

  [[nodiscard]] State forward(const State& state, StepContext& context) const override;

  [[nodiscard]] bool reads_cache() const override { return true; }

private:
  Axis embed_;
  std::unique_ptr<TokenEmbedding> words_;
};

/// The places of the norms in a layer.
enum class NormPlacement : uint8_t {
  pre,     ///< x + part(norm(x))
  post,    ///< norm(x + part(x)), no final norm
  branch,  ///< x + norm(part(x))
  sandwich ///< x + norm(part(norm(x))), two norms
};

/// The functions that make the parts of a layer; without `cross_attention` it has none.
struct DecoderParts {
  std::function<std::unique_ptr<NormPart>(Builder&)> norm;
  std::function<std::unique_ptr<AttentionPart>(Builder&)> attention;
  std::function<std::unique_ptr<FeedForwardPart>(Builder&)> feed_forward;
  std::function<std::unique_ptr<CrossAttentionPart>(Builder&)> cross_attention{};
  /// Attention and feed-forward read the layer's input and are added to it together; not with
  /// cross attention or NormPlacement::post.
  bool parallel = false;
  bool shared_norm = false; ///< one norm for both of parallel parts; with NormPlacement::pre alone
};

/// Attention, attention to a memory where there is one, then a feed-forward, each on a residual
/// branch with a norm: a layer of a decoder or an encoder, of parts of any kind. Their names begin
/// with "attention_norm.", "attention.", "cross_attention_norm.", "cross_attention.", "mlp_norm.",
/// "mlp."; the second norms of a sandwich with "attention_out_norm." and so on; a norm that both parts
/// read is "attention_norm.".
///
/// State:   "hidden" [seq, batch, embed] -> the same; "memory" [seq of its sequence, batch, embed],
///          which cross attention reads, passes unchanged
class MH_API DecoderLayer : public Block {
public:
  DecoderLayer(
      Builder& builder,
      Axis embed,
      NormPlacement placement,
      double dropout,
      const DecoderParts& parts
  );
  [[nodiscard]] State forward(const State& state, StepContext& context) const override;

  /// Whether all its parts read a cache.
  [[nodiscard]] bool reads_cache() const override;

private:
  /// The residual stream: a sum, and what a norm may add to it on its way (or undefined).
  struct Stream {
    at::Tensor sum, added;

    [[nodiscard]] at::Tensor whole() const;
  };

  /// The norms of one part; the second, null or of a sandwich, is of what the part makes.
  struct Norms {
    std::unique_ptr<NormPart> first, second;
  };

  [[nodiscard]] Norms
  norms(Builder& builder, const std::string& part, const DecoderParts& parts) const;

  /// x + attention(norm(x)) + feed_forward(norm(x)), the norm computed once.
  [[nodiscard]] at::Tensor with_shared_norm(const at::Tensor& x, StepContext& context) const;

  template <class Run>
  Stream residual(
      std::string_view name,
      const Stream& stream,
      const at::Tensor& memory,
      const Run& part,
      const Norms& norms,
      uint64_t site,
      StepContext& context
  ) const;

  Axis embed_;
  NormPlacement placement_;
  bool parallel_, shared_norm_;
  double dropout_;
  uint64_t attention_site_, cross_site_, mlp_site_;
  Norms attention_norms_;
  std::unique_ptr<AttentionPart> attention_;
  Norms cross_norms_;
  std::unique_ptr<CrossAttentionPart> cross_attention_; // or null
  Norms mlp_norms_;                                     // null with a shared norm
  std::unique_ptr<FeedForwardPart> mlp_;
};

/// The functions that make the parts of an output layer.
struct DecoderHeadParts {
  std::function<std::unique_ptr<NormPart>(Builder&)> final_norm; ///< may make null: there is none
  /// These make the norms and the layers of multi-token prediction.
  std::function<std::unique_ptr<NormPart>(Builder&)> norm{};
  std::function<std::unique_ptr<Block>(Builder&)> layer{};
};

/// The last block: a final norm, then scores of the next token, or their loss where there are
/// labels; with `mtp_layers` the modules of multi-token prediction and their losses.
///
/// Parameters: those of Decoder that begin with "head."
/// Arrays:  "labels" [seq, batch] int64, "loss_mask" [seq, batch] float32; of module D
///          "mtp_D_tokens", "mtp_D_labels", "mtp_D_loss_mask"
/// State:   "hidden" [seq, batch, embed] -> {} with labels, "logits" [seq, batch, vocab] without
class MH_API DecoderHead : public Block {
public:
  /// Reads what `config` says of the output layer; a `tied` one shares `embedding.word.weight`. An
  /// architecture with `mtp_layers` declares their arrays by `shifted_arrays`, as Decoder does.
  ///
  /// Throws:  mh::Error if it gives no vocabulary
  DecoderHead(
      Builder& builder,
      const DecoderConfig& config,
      int64_t seq_length,
      const DecoderHeadParts& parts
  );
  ~DecoderHead() override;

  [[nodiscard]] State forward(const State& state, StepContext& context) const override;

  [[nodiscard]] bool reads_cache() const override { return true; }

private:
  [[nodiscard]] at::Tensor scaled(const at::Tensor& x) const;

  /// `arrays` is what the names of labels and their mask begin with.
  void add_loss(
      const at::Tensor& x,
      const std::string& name,
      const std::string& arrays,
      double weight,
      StepContext& context
  ) const;

  std::unique_ptr<NormPart> norm_; // or null
  double scale_;
  Axis vocab_;
  double gemms_; // FLOPs of the output layer
  VocabHead head_;
  std::vector<MultiTokenPrediction> mtp_;
  double mtp_weight_;
};

} // namespace mh
