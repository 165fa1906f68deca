#include "decoders.hpp"

#include "component.hpp"
#include "core/text/byte_alphabet.hpp"
#include "core/text/utf8.hpp"
#include "core/text/word_pieces.hpp"

#include <charconv>

namespace mh::hf {
namespace {

/// All places of `from` in `text`.
void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = 0; !from.empty() && (at = text.find(from, at)) != std::string::npos;) {
    text.replace(at, from.size(), to);
    at += to.size();
  }
}

void byte_level_decoder(std::vector<std::string>& tokens) {
  for (std::string& token : tokens) {
    token = text::token_bytes(token);
  }
}

void byte_fallback(std::vector<std::string>& tokens) {
  for (std::string& token : tokens) {
    unsigned byte = 0;
    const char* digits = token.data() + 3;
    if (token.size() == 6 && token.starts_with("<0x") && token.ends_with('>') &&
        std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      token = static_cast<char>(byte);
    }
  }
}

void fuse(std::vector<std::string>& tokens) {
  std::string whole;
  for (const std::string& token : tokens) {
    whole += token;
  }
  tokens = {whole};
}

TokenDecoder metaspace_decoder(const nlohmann::json& component, const std::string& where) {
  const std::string mark = json_string(component, "replacement", where);
  const nlohmann::json* scheme = optional_member(component, "prepend_scheme");
  const bool prefix =
      scheme != nullptr ? *scheme != "never" : flag(component, "add_prefix_space", true, where);
  return [=](std::vector<std::string>& tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      replace_all(tokens[i], mark, i == 0 && prefix ? "" : " ");
    }
  };
}

TokenDecoder strip_decoder(const nlohmann::json& component, const std::string& where) {
  const std::string content = json_string(component, "content", where);
  const int64_t start = json_size(component, "start", where);
  const int64_t stop = json_size(component, "stop", where);
  return [=](std::vector<std::string>& tokens) {
    for (std::string& token : tokens) {
      for (int64_t i = 0; i < start && !content.empty() && token.starts_with(content); ++i) {
        token.erase(0, content.size());
      }
      for (int64_t i = 0; i < stop && !content.empty() && token.ends_with(content); ++i) {
        token.resize(token.size() - content.size());
      }
    }
  };
}

TokenDecoder replace_decoder(const nlohmann::json& component, const std::string& where) {
  const Sought sought(component, where);
  const std::string content = json_string(component, "content", where);
  return [=](std::vector<std::string>& tokens) {
    for (std::string& token : tokens) {
      size_t head = 0;
      token = sought.replaced(text::replace_invalid(token), content, head);
    }
  };
}

TokenDecoder word_piece(const nlohmann::json& component, const std::string& where) {
  const std::string prefix = json_string(component, "prefix", where);
  const bool clean = flag(component, "cleanup", true, where);
  return [=](std::vector<std::string>& tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = text::decoded_piece(tokens[i], i, prefix, clean);
    }
  };
}

TokenDecoder end_of_word(const nlohmann::json& component, const std::string& where) {
  const std::string suffix = json_string(component, "suffix", where);
  return [=](std::vector<std::string>& tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      replace_all(tokens[i], suffix, i + 1 == tokens.size() ? "" : " ");
    }
  };
}

TokenDecoder read_decoder(const nlohmann::json& component, const std::string& where) {
  const std::string& type = json_string(component, "type", where);
  if (type == "ByteLevel") {
    return byte_level_decoder;
  }
  if (type == "ByteFallback") {
    return byte_fallback;
  }
  if (type == "Fuse") {
    return fuse;
  }
  if (type == "Metaspace") {
    return metaspace_decoder(component, where);
  }
  if (type == "Strip") {
    return strip_decoder(component, where);
  }
  if (type == "Replace") {
    return replace_decoder(component, where);
  }
  if (type == "WordPiece") {
    return word_piece(component, where);
  }
  if (type == "BPEDecoder") {
    return end_of_word(component, where);
  }
  unknown(where, "the component " + string_text(type));
}

} // namespace

std::vector<TokenDecoder> read_decoders(const nlohmann::json& component, const std::string& where) {
  std::vector<TokenDecoder> decoders;
  for (const nlohmann::json& one : components(component, "decoders", where)) {
    decoders.push_back(read_decoder(one, where));
  }
  return decoders;
}

} // namespace mh::hf
