#include "normalizers.hpp"

#include "component.hpp"
#include "core/text/base64.hpp"
#include "core/text/byte_alphabet.hpp"
#include "core/text/charsmap.hpp"
#include "core/text/normal_form.hpp"
#include "core/text/unicode.hpp"
#include "core/text/utf8.hpp"
#include "core/text/word_pieces.hpp"

#include <algorithm>

namespace mh::hf {
namespace {

/// A normalizer that leaves no character out.
template <class Change>
TextNormalizer keeping(Change change) {
  return [change](const std::string& text, bool&) { return change(text); };
}

/// A normalizer that may leave characters out, whatever stands around them.
template <class Change>
TextNormalizer dropping(Change change) {
  return [change](const std::string& text, bool& ret_begins) {
    const std::string first = text.substr(0, text::character_length(text));
    ret_begins = ret_begins && (text.empty() || !std::string(change(first)).empty());
    return change(text);
  };
}

TextNormalizer form(text::NormalForm form) {
  return keeping([form](const std::string& text) { return text::normalized(text, form); });
}

TextNormalizer replace_normalizer(const nlohmann::json& component, const std::string& where) {
  const Sought sought(component, where);
  const std::string& content = json_string(component, "content", where);
  return [sought, content](const std::string& text, bool& ret_begins) {
    size_t head = 0;
    std::string result = sought.replaced(text, content, head);
    // The last of several characters gives the place.
    const bool one = head <= text::character_length(text);
    ret_begins = ret_begins && (head == 0 || (one && !content.empty()));
    return result;
  };
}

TextNormalizer prepend(const nlohmann::json& component, const std::string& where) {
  const std::string& content = json_string(component, "prepend", where);
  return keeping([content](const std::string& text) { return text.empty() ? text : content + text; }
  );
}

TextNormalizer strip_normalizer(const nlohmann::json& component, const std::string& where) {
  const bool left = flag(component, "strip_left", true, where);
  const bool right = flag(component, "strip_right", true, where);
  return [left, right](const std::string& text, bool& ret_begins) {
    size_t begin = text.size(), end = 0; // range of what is no white space
    for (size_t at = 0; at < text.size();) {
      const text::Character c = text::decode_at(text.data() + at);
      if (!text::categories().in(c.code, text::kSpaces)) {
        begin = std::min(begin, at);
        end = at + c.length;
      }
      at += c.length;
    }
    begin = left ? begin : 0;
    ret_begins = ret_begins && begin == 0;
    end = right ? std::max(begin, end) : text.size();
    return text.substr(begin, end - begin);
  };
}

/// The steps of sentencepiece's rule nmt, without NFKC.
std::string nmt(const std::string& text) {
  std::string result;
  text::for_each_character(text, [&](char32_t code, std::string_view character) {
    const bool space = code == 9 || code == 10 || code == 12 || code == 13 || code == 0x1680 ||
                       (code >= 0x200B && code <= 0x200F) || code == 0x2028 || code == 0x2029 ||
                       code == 0x2581 || code == 0xFEFF || code == 0xFFFD;
    const bool control = (code >= 1 && code < 32) || code == 0x7F || code == 0x8F || code == 0x9F;
    if (space) {
      result += ' ';
    } else if (!control) {
      result += character;
    }
  });
  return result;
}

/// Appends what one entry of the table makes of `text`, if the table has one.
bool append_change(const text::Charsmap& map, std::string_view text, std::string& ret_text) {
  const auto match = map.shortest(text);
  if (match) {
    ret_text += text::replace_invalid(match->becomes);
  }
  return match.has_value();
}

/// A character and the marks behind it, up to five bytes, are changed as one where the table begins
/// with some of it; else each character is looked at.
std::string precompiled(const text::Charsmap& map, const std::string& text) {
  constexpr size_t kLongest = 5;
  const auto attached = [&](size_t at) {
    const char32_t code = text::decode_at(text.data() + at).code;
    return text::categories().in(code, text::kMarks) || code == 0x200C || code == 0x200D ||
           code == 0xFF9E || code == 0xFF9F || (code >= 0x1F3FB && code <= 0x1F3FF);
  };
  const auto alone = [](char32_t code) {
    return text::categories().in(
        code,
        text::kControls | text::set_of(text::Category::Cf) |
            text::set_of(text::Category::Zl, text::Category::Zp)
    );
  };
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const text::Character first = text::decode_at(text.data() + at);
    size_t end = at + first.length;
    if (text.compare(at, 2, "\r\n") == 0) {
      end = at + 2;
    } else if (!alone(first.code)) {
      while (end < text.size() && attached(end)) {
        end += text::decode_at(text.data() + end).length;
      }
    }
    const std::string_view cluster = std::string_view(text).substr(at, end - at);
    at = end;
    if (cluster.size() <= kLongest && append_change(map, cluster, result)) {
      continue;
    }
    text::for_each_character(cluster, [&](char32_t, std::string_view character) {
      if (!append_change(map, character, result)) {
        result += character;
      }
    });
  }
  return result;
}

std::string charsmap_bytes(const nlohmann::json& component, const std::string& where) {
  const std::string& text = json_string(component, "precompiled_charsmap", where);
  std::string bytes;
  if (!text::from_base64(text, bytes)) {
    refuse(where, "`precompiled_charsmap` is no base64");
  }
  return bytes;
}

TextNormalizer bert(const nlohmann::json& component, const std::string& where) {
  text::BertRules rules;
  rules.clean = flag(component, "clean_text", true, where);
  rules.chinese = flag(component, "handle_chinese_chars", true, where);
  rules.lower_case = flag(component, "lowercase", true, where);
  rules.strip_accents = flag(component, "strip_accents", rules.lower_case, where);
  return dropping([rules](const std::string& text) { return text::bert_normalized(text, rules); });
}

TextNormalizer read_normalizer(const nlohmann::json& component, const std::string& where) {
  const std::string& type = json_string(component, "type", where);
  if (type == "NFC") {
    return form(text::NormalForm::nfc);
  }
  if (type == "NFD") {
    return form(text::NormalForm::nfd);
  }
  if (type == "NFKC") {
    return form(text::NormalForm::nfkc);
  }
  if (type == "NFKD") {
    return form(text::NormalForm::nfkd);
  }
  if (type == "Lowercase") {
    return keeping(text::lower);
  }
  if (type == "StripAccents") {
    return dropping([](const std::string& text) { return text::without(text::kMarks, text); });
  }
  if (type == "Strip") {
    return strip_normalizer(component, where);
  }
  if (type == "Replace") {
    return replace_normalizer(component, where);
  }
  if (type == "Prepend") {
    return prepend(component, where);
  }
  if (type == "Nmt") {
    return dropping(nmt);
  }
  if (type == "ByteLevel") {
    return keeping(text::byte_letters);
  }
  if (type == "BertNormalizer") {
    return bert(component, where);
  }
  if (type == "Precompiled") {
    const auto map =
        std::make_shared<const text::Charsmap>(charsmap_bytes(component, where), where);
    return dropping([map](const std::string& text) { return precompiled(*map, text); });
  }
  unknown(where, "the component " + string_text(type));
}

} // namespace

std::vector<TextNormalizer>
read_normalizers(const nlohmann::json& component, const std::string& where) {
  std::vector<TextNormalizer> normalizers;
  for (const nlohmann::json& one : components(component, "normalizers", where)) {
    normalizers.push_back(read_normalizer(one, where));
  }
  return normalizers;
}

} // namespace mh::hf
