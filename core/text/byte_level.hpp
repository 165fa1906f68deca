#pragma once
/// Byte-level encoding of whole texts: special tokens, words, merges. GPT-2's, tiktoken's and most
/// of Hugging Face's tokenizers have this in common.

#include "core/text/added_tokens.hpp"
#include "core/text/byte_pairs.hpp"

#include <memory>
#include <string_view>
#include <vector>

namespace mh::text {

class ByteLevel {
public:
  BytePairModel model;
  std::unique_ptr<Splitter> splitter;
  AddedTokens special;

  /// Any bytes: a run of bytes that are no UTF-8 is a word.
  ///
  /// Thread:  any, once the members are set
  [[nodiscard]] std::vector<int32_t> encode(std::string_view text) const;

private:
  Pool<WordEncoder> encoders_;
};

} // namespace mh::text
