#pragma once
/// Samples of tokens with padding, and texts in which sentinels (`SpecialIds::extra`) stand for
/// spans, as T5 reads and fills them.

#include "megahost/sample.hpp"
#include "megahost/tokenizer.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace mh {

/// An array of a sample, "encoder_tokens" of the sequence "encoder", "tokens" of "", up to where the
/// sequence's segments change, as they do at padding; empty if the sample has none.
[[nodiscard]] std::vector<int32_t> first_document(
    const Sample& sample, const std::string& sequence, const std::string& name = "tokens"
);

/// Whether one of the ids stands for a span.
[[nodiscard]] bool has_spans(std::span<const int32_t> ids, const Tokenizer& tokenizer);

/// The text of `ids` with spans in the place of their sentinels, in the notation of git's word
/// diff: `{+span+}` as in `written`, behind `[-span-]` where `taken` has another one. In both each
/// sentinel comes before its span. The first end of a document is the end of any of the three.
[[nodiscard]] std::string filled_text(
    std::span<const int32_t> ids,
    std::span<const int32_t> written,
    std::span<const int32_t> taken,
    const Tokenizer& tokenizer
);

} // namespace mh
