#pragma once
/// The section `decoder` of tokenizer.json: how tokens become a text again.

#include <nlohmann/json_fwd.hpp>

#include <functional>
#include <string>
#include <vector>

namespace mh::hf {

/// Changes the tokens of a text; put one behind the other they are the text. Any bytes.
using TokenDecoder = std::function<void(std::vector<std::string>& tokens)>;

/// BPEDecoder, ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Strip, WordPiece, and Sequences
/// of them. Bytes of ByteFallback come back as they are, whole characters or not.
///
/// Throws:  mh::Error (exit code 5) "WHERE: ..." naming a component that is not known
[[nodiscard]] std::vector<TokenDecoder>
read_decoders(const nlohmann::json& component, const std::string& where);

} // namespace mh::hf
