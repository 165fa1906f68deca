#include "pre_tokenizers.hpp"

#include "component.hpp"
#include "core/text/byte_alphabet.hpp"
#include "core/text/unicode.hpp"
#include "core/text/utf8.hpp"

#include <algorithm>
#include <array>

namespace mh::hf {
namespace {

/// A part of a piece, and whether it is what a cut is made at.
struct Part {
  size_t begin, end;
  bool matched;
};

using Parts = std::vector<Part>;
using Finder = std::function<Parts(std::string_view text)>;

/// The treatment of the parts that match.
enum class Behavior : uint8_t { removed, isolated, with_previous, with_next, contiguous };

void apply(Behavior behavior, Parts& parts) {
  Parts kept;
  if (behavior == Behavior::with_next) {
    std::ranges::reverse(parts);
  }
  bool matched_before = false;
  for (const Part& part : parts) {
    const bool joins =
        !kept.empty() && (behavior == Behavior::contiguous ? part.matched == matched_before
                          : behavior == Behavior::with_previous || behavior == Behavior::with_next
                              ? part.matched && !matched_before
                              : false);
    if (joins) {
      kept.back().begin = std::min(kept.back().begin, part.begin);
      kept.back().end = std::max(kept.back().end, part.end);
    } else if (behavior != Behavior::removed || !part.matched) {
      kept.push_back(part);
    }
    matched_before = part.matched;
  }
  if (behavior == Behavior::with_next) {
    std::ranges::reverse(kept);
  }
  parts = std::move(kept);
}

PreTokenizer cut(Finder find, Behavior behavior) {
  return [find = std::move(find), behavior](std::vector<TextPart>& pieces) {
    std::vector<TextPart> result;
    for (const TextPart& piece : pieces) {
      Parts parts = find(piece.text);
      apply(behavior, parts);
      for (const auto [begin, end, matched] : parts) {
        if (begin < end) {
          result.push_back({piece.text.substr(begin, end - begin), piece.first && begin == 0});
        }
      }
    }
    pieces = std::move(result);
  };
}

/// Each character for which `is` holds is a match; the others come in runs.
template <class Is>
Finder characters(Is is) {
  return [is](std::string_view text) {
    Parts parts;
    for (size_t at = 0; at < text.size();) {
      const text::Character c = text::decode_at(text.data() + at);
      const bool matched = is(c.code);
      if (!matched && !parts.empty() && !parts.back().matched) {
        parts.back().end += c.length;
      } else {
        parts.push_back({at, at + c.length, matched});
      }
      at += c.length;
    }
    return parts;
  };
}

bool is_space(char32_t code) {
  return text::categories().in(code, text::kSpaces);
}

bool is_number(char32_t code) {
  return text::categories().in(code, text::kNumbers);
}

/// Runs of word characters and runs of others, white space between them: `\w+|[^\w\s]+`.
Parts words(std::string_view text) {
  Parts parts;
  int last = -1;
  for (size_t at = 0; at < text.size();) {
    const text::Character c = text::decode_at(text.data() + at);
    const int kind = text::is_word_character(c.code) ? 1 : is_space(c.code) ? 0 : 2;
    if (kind == last) {
      parts.back().end += c.length;
    } else {
      parts.push_back({at, at + c.length, kind == 0});
    }
    last = kind;
    at += c.length;
  }
  return parts;
}

Behavior
behavior_of(const nlohmann::json& component, const char* otherwise, const std::string& where) {
  constexpr std::array<std::pair<std::string_view, Behavior>, 5> kBehaviors{{
      {"Removed", Behavior::removed},
      {"Isolated", Behavior::isolated},
      {"MergedWithPrevious", Behavior::with_previous},
      {"MergedWithNext", Behavior::with_next},
      {"Contiguous", Behavior::contiguous},
  }};
  const bool given = otherwise == nullptr || optional_member(component, "behavior") != nullptr;
  const std::string name = given ? json_string(component, "behavior", where) : otherwise;
  for (const auto& [known, behavior] : kBehaviors) {
    if (known == name) {
      return behavior;
    }
  }
  unknown(where, "the behavior " + string_text(name));
}

PreTokenizer split(const nlohmann::json& component, const std::string& where) {
  const Sought sought(component, where);
  const bool invert = flag(component, "invert", false, where);
  return cut(
      [sought, invert](std::string_view text) {
        Parts parts;
        sought.for_each_part(text, [&](size_t begin, size_t end, bool matched) {
          parts.push_back({begin, end, matched != invert});
        });
        return parts;
      },
      behavior_of(component, nullptr, where)
  );
}

/// A member that is one character; "\u2581" is the usual one.
std::string character_of(
    const nlohmann::json& component,
    const char* key,
    const char* otherwise,
    const std::string& where
) {
  const bool given = otherwise == nullptr || optional_member(component, key) != nullptr;
  const std::string character = given ? json_string(component, key, where) : otherwise;
  if (character.empty() || text::character_length(character) != character.size()) {
    refuse(where, std::string("`") + key + "` is no single character");
  }
  return character;
}

PreTokenizer metaspace(const nlohmann::json& component, const std::string& where) {
  const std::string mark = character_of(component, "replacement", "\u2581", where);
  const bool prefix = flag(component, "add_prefix_space", true, where);
  const std::string scheme = optional_member(component, "prepend_scheme") != nullptr
                                 ? json_string(component, "prepend_scheme", where)
                             : prefix ? "always"
                                      : "never";
  if (scheme != "always" && scheme != "never" && scheme != "first") {
    unknown(where, "the prepend_scheme " + string_text(scheme));
  }
  const char32_t code = text::decode_at(mark.data()).code;
  const PreTokenizer cut_at_mark =
      cut(characters([code](char32_t other) { return other == code; }), Behavior::with_next);
  const bool cuts = flag(component, "split", true, where);
  return [=](std::vector<TextPart>& pieces) {
    for (TextPart& piece : pieces) {
      std::string marked;
      for (const char c : piece.text) {
        if (c == ' ') {
          marked += mark;
        } else {
          marked += c;
        }
      }
      const bool begins = scheme == "always" || (scheme == "first" && piece.first);
      piece.text = begins && !marked.starts_with(mark) ? mark + marked : marked;
    }
    if (cuts) {
      cut_at_mark(pieces);
    }
  };
}

PreTokenizer byte_level(const nlohmann::json& component, const std::string& where) {
  const bool prefix = flag(component, "add_prefix_space", true, where);
  const bool own_pattern = flag(component, "use_regex", true, where);
  const std::shared_ptr<const text::Splitter> splitter = text::gpt2_splitter();
  const PreTokenizer cut_words = cut(
      [splitter](std::string_view text) {
        Parts parts;
        std::array<size_t, 64> ends{};
        for (size_t begin = 0; begin < text.size();) {
          const size_t count = splitter->ends(text, begin, ends);
          for (size_t i = 0; i < count; begin = ends[i++]) {
            parts.push_back({begin, ends[i], true});
          }
        }
        return parts;
      },
      Behavior::isolated
  );
  return [=](std::vector<TextPart>& pieces) {
    for (TextPart& piece : pieces) {
      if (prefix && piece.text[0] != ' ') {
        piece.text.insert(0, " ");
      }
    }
    if (own_pattern) {
      cut_words(pieces);
    }
    for (TextPart& piece : pieces) {
      piece.text = text::byte_letters(piece.text);
    }
  };
}

PreTokenizer fixed_length(const nlohmann::json& component, const std::string& where) {
  const int64_t length =
      optional_member(component, "length") != nullptr ? json_size(component, "length", where) : 5;
  if (length == 0) {
    refuse(where, "`length` is 0");
  }
  return cut(
      [length](std::string_view text) {
        Parts parts;
        int64_t count = 0;
        for (size_t at = 0; at < text.size(); ++count) {
          const size_t bytes = text::decode_at(text.data() + at).length;
          if (count % length == 0) {
            parts.push_back({at, at, true});
          }
          at += bytes;
          parts.back().end = at;
        }
        return parts;
      },
      Behavior::isolated
  );
}

void append_one(
    const nlohmann::json& component, const std::string& where, std::vector<PreTokenizer>& ret_all
) {
  const std::string& type = json_string(component, "type", where);
  if (type == "BertPreTokenizer") {
    ret_all.push_back(cut(characters(is_space), Behavior::removed));
    ret_all.push_back(cut(characters(text::is_punctuation), Behavior::isolated));
  } else if (type == "ByteLevel") {
    ret_all.push_back(byte_level(component, where));
  } else if (type == "CharDelimiterSplit") {
    const std::string delimiter = character_of(component, "delimiter", nullptr, where);
    const char32_t code = text::decode_at(delimiter.data()).code;
    ret_all.push_back(
        cut(characters([code](char32_t other) { return other == code; }), Behavior::removed)
    );
  } else if (type == "Digits") {
    const bool single = flag(component, "individual_digits", false, where);
    ret_all.push_back(cut(characters(is_number), single ? Behavior::isolated : Behavior::contiguous)
    );
  } else if (type == "FixedLength") {
    ret_all.push_back(fixed_length(component, where));
  } else if (type == "Metaspace") {
    ret_all.push_back(metaspace(component, where));
  } else if (type == "Punctuation") {
    ret_all.push_back(
        cut(characters(text::is_punctuation), behavior_of(component, "Isolated", where))
    );
  } else if (type == "Split") {
    ret_all.push_back(split(component, where));
  } else if (type == "Whitespace") {
    ret_all.push_back(cut(words, Behavior::removed));
  } else if (type == "WhitespaceSplit") {
    ret_all.push_back(cut(characters(is_space), Behavior::removed));
  } else {
    unknown(where, "the component " + string_text(type));
  }
}

bool is_deepseek(const std::vector<std::string>& patterns) {
  return patterns.size() == 3 && patterns[0] == R"(\p{N}{1,3})" &&
         patterns[1] == "[一-龥\u3040-ゟ゠-ヿ]+" &&
         patterns[2] ==
             "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?"
             "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";
}

/// All of a text is one word.
class WholeSplitter final : public text::Splitter {
public:
  [[nodiscard]] size_t
  ends(std::string_view text, size_t begin, std::span<size_t> ret_ends) const override {
    if (begin == text.size()) {
      return 0;
    }
    ret_ends[0] = text.size();
    return 1;
  }
};

/// Whether a Split leaves out the text between its matches, which is none where they cover all.
bool drops_the_rest(const nlohmann::json& component, const std::string& where) {
  return behavior_of(component, nullptr, where) == Behavior::removed;
}

/// The regular expression of a Split that cuts before and behind its matches; none of another.
std::optional<std::string> isolated(const nlohmann::json& component, const std::string& where) {
  const nlohmann::json* pattern = optional_member(component, "pattern");
  if (json_string(component, "type", where) != "Split" || pattern == nullptr ||
      !pattern->is_object() || !pattern->contains("Regex")) {
    return std::nullopt;
  }
  const Behavior behavior = behavior_of(component, nullptr, where);
  const bool invert = flag(component, "invert", false, where);
  if (behavior != Behavior::isolated && !(behavior == Behavior::removed && invert)) {
    return std::nullopt;
  }
  return json_string(*pattern, "Regex", where);
}

} // namespace

std::vector<PreTokenizer>
read_pre_tokenizers(const nlohmann::json& component, const std::string& where) {
  std::vector<PreTokenizer> all;
  for (const nlohmann::json& one : components(component, "pretokenizers", where)) {
    append_one(one, where, all);
  }
  return all;
}

ByteSplitter read_byte_splitter(const nlohmann::json& component, const std::string& where) {
  const std::vector<nlohmann::json> parts = components(component, "pretokenizers", where);
  if (parts.empty() || json_string(parts.back(), "type", where) != "ByteLevel") {
    return {};
  }
  std::vector<std::string> patterns;
  bool drops = false;
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    const auto pattern = isolated(parts[i], where);
    if (!pattern) {
      return {};
    }
    patterns.push_back(*pattern);
    drops = drops || drops_the_rest(parts[i], where);
  }
  const bool prefix = flag(parts.back(), "add_prefix_space", true, where);
  const bool own_pattern = flag(parts.back(), "use_regex", true, where);
  if (is_deepseek(patterns) && !prefix && !own_pattern && !drops) {
    return {text::deepseek_splitter(), false};
  }
  if (patterns.size() > 1 || (patterns.size() == 1 && (prefix || own_pattern))) {
    return {};
  }
  if (patterns.empty()) {
    return {own_pattern ? text::gpt2_splitter() : std::make_unique<WholeSplitter>(), prefix};
  }
  auto splitter = text::known_splitter(patterns[0]);
  if (splitter == nullptr && drops) { // the known ones cover all text
    return {};
  }
  if (splitter == nullptr) {
    splitter = text::pattern_splitter(
        std::make_shared<text::Pattern>(patterns[0], text::Dialect::oniguruma, where)
    );
  }
  return {std::move(splitter), false};
}

} // namespace mh::hf
