#pragma once
/// Embeddings of queries and contexts by a retriever.

#include "core/session/session.hpp"
#include "megahost/sample.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

enum class EmbeddedText : uint8_t { query, context };

/// Embeds texts with a model of which each rank has a copy; ranks share the texts.
class Embedder {
public:
  /// The session outlives it.
  ///
  /// Throws:  mh::Error (exit code 5) if its model gives no "query_embedding" and
  ///          "context_embedding"
  explicit Embedder(const Session& session);

  /// The tokens of a text between [CLS] and [SEP], behind its title and [SEP] as corpora of pairs
  /// write them; what is too long loses its end.
  ///
  /// Throws:  mh::Error (exit code 5) for ids that the model does not have
  [[nodiscard]] std::vector<int64_t>
  ids(EmbeddedText kind, std::string_view text, std::string_view title = {}) const;

  /// The tokens of a sample's query or context, without padding.
  ///
  /// Throws:  mh::Error (exit code 5) for a corpus without them
  [[nodiscard]] static std::vector<int64_t> ids(EmbeddedText kind, const Sample& sample);

  /// The text of ids, without special tokens.
  [[nodiscard]] std::string text(const std::vector<int64_t>& ids) const;

  /// Shapes:  [texts, dim] float32 on the host, at least one text
  /// Ranks:   all of the session's, with the same texts
  [[nodiscard]] at::Tensor
  embed(EmbeddedText kind, const std::vector<std::vector<int64_t>>& texts) const;

private:
  [[nodiscard]] int64_t length(EmbeddedText kind) const;

  /// Rows of equal length: those that are shorter are padded.
  [[nodiscard]] at::Tensor
  embed_batch(EmbeddedText kind, const std::vector<std::vector<int64_t>>& texts) const;

  const Session& session_;
  SpecialIds special_;
};

} // namespace mh
