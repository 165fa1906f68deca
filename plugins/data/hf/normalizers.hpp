#pragma once
/// The section `normalizer` of tokenizer.json: how texts are changed before they are split.

#include <nlohmann/json_fwd.hpp>

#include <functional>
#include <string>
#include <vector>

namespace mh::hf {

/// Takes and gives valid UTF-8. `ret_begins`, that a text begins the one that was given, ends where
/// its first characters go: `tokenizers` looks at the place that the rest had.
using TextNormalizer = std::function<std::string(const std::string& text, bool& ret_begins)>;

/// NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Replace, Prepend, Nmt, Precompiled,
/// BertNormalizer, ByteLevel, and Sequences of them.
///
/// Throws:  mh::Error (exit code 5) "WHERE: ..." naming a component that is not known
[[nodiscard]] std::vector<TextNormalizer>
read_normalizers(const nlohmann::json& component, const std::string& where);

} // namespace mh::hf
