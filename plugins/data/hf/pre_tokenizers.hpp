#pragma once
/// The section `pre_tokenizer` of tokenizer.json: how texts are cut into the words that the model
/// sees.

#include "core/text/splitter.hpp"

#include <nlohmann/json_fwd.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace mh::hf {

/// A word, or what will be cut into words.
struct TextPart {
  std::string text;
  bool first = false; ///< it begins the text that was given
};

/// Cuts each of the pieces, which are valid UTF-8 and not empty, and changes them.
using PreTokenizer = std::function<void(std::vector<TextPart>& pieces)>;

/// BertPreTokenizer, ByteLevel, CharDelimiterSplit, Digits, FixedLength, Metaspace, Punctuation,
/// Split, Whitespace, WhitespaceSplit, and Sequences of them.
///
/// Throws:  mh::Error (exit code 5) "WHERE: ..." naming a component that is not known
[[nodiscard]] std::vector<PreTokenizer>
read_pre_tokenizers(const nlohmann::json& component, const std::string& where);

/// ByteLevel alone or behind Splits that isolate, as one splitter whose words are bytes.
struct ByteSplitter {
  std::unique_ptr<text::Splitter> splitter; ///< null: it is something else
  bool prefix_space = false;
};

[[nodiscard]] ByteSplitter
read_byte_splitter(const nlohmann::json& component, const std::string& where);

} // namespace mh::hf
