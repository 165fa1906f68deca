#pragma once
/// The section `normalizer` of tokenizer.json: how texts are changed before they are split.

#include <nlohmann/json_fwd.hpp>

#include <functional>
#include <string>
#include <vector>

namespace mh::hf {

/// Takes and gives valid UTF-8.
using TextNormalizer = std::function<std::string(const std::string&)>;

/// NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Replace, Prepend, Nmt, Precompiled,
/// BertNormalizer, ByteLevel, and Sequences of them.
///
/// Throws:  mh::Error (exit code 5) "WHERE: ..." naming a component that is not known
[[nodiscard]] std::vector<TextNormalizer>
read_normalizers(const nlohmann::json& component, const std::string& where);

} // namespace mh::hf
