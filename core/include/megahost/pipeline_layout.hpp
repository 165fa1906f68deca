#pragma once
/// How a model's blocks are divided among the chunks of a pipeline, as a recipe writes it:
/// "embed+3|4|4|3+head".

#include "megahost/export.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

/// The contents of one chunk.
struct LayoutChunk {
  bool embedding = false;
  int64_t layers = 0;
  bool head = false;
  friend bool operator==(const LayoutChunk&, const LayoutChunk&) = default;
};

/// The words that are no layout written out.
[[nodiscard]] inline bool is_layout_word(std::string_view text) {
  return text == "balanced" || text == "even";
}

/// Reads chunks between bars: terms `embed`, a number of layers, `head`, joined by plus signs.
///
/// Returns: nothing if the text is something else, or a chunk is empty, or embedding and head are
///          not the first and the last of all
[[nodiscard]] MH_API std::optional<std::vector<LayoutChunk>> parse_layout(std::string_view text);

/// "embed+3|4|4|3+head".
[[nodiscard]] std::string layout_text(const std::vector<LayoutChunk>& chunks);

/// Chunks of one number of layers each; `chunks` divides `layers`.
[[nodiscard]] std::vector<LayoutChunk> even_layout(int64_t layers, int64_t chunks);

/// Consecutive blocks so that the most expensive chunk is as cheap as can be, and the others alike
/// where that leaves a choice. Every chunk has a layer, only the last one may be the head alone.
///
/// `costs` are those of the embedding, the layers and the head, in any unit; there are at least as
/// many layers as chunks.
[[nodiscard]] std::vector<LayoutChunk>
balanced_layout(const std::vector<double>& costs, int64_t chunks);

} // namespace mh
