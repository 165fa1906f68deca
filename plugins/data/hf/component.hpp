#pragma once
/// The code that the readers of tokenizer.json's components share.

#include "core/base/text.hpp"
#include "core/formats/json.hpp"
#include "core/text/pattern.hpp"

#include <megahost/error.hpp>

#include <nlohmann/json.hpp>

#include <memory>
#include <string>
#include <vector>

namespace mh::hf {

[[noreturn]] void refuse(const std::string& where, const std::string& why);

/// For what the format has, but is not read here.
[[noreturn]] void unknown(const std::string& where, const std::string& what);

/// A member that may be missing or null.
[[nodiscard]] const nlohmann::json* optional_member(const nlohmann::json& object, const char* key);

[[nodiscard]] bool
flag(const nlohmann::json& object, const char* key, bool otherwise, const std::string& where);

[[nodiscard]] const nlohmann::json&
list_of(const nlohmann::json& object, const char* key, const std::string& where);

/// A component, or the members of a Sequence of them, one within another included.
[[nodiscard]] std::vector<nlohmann::json>
components(const nlohmann::json& component, const char* sequence_key, const std::string& where);

/// The text that Split and Replace look for: `{"String": ...}` or `{"Regex": ...}`.
class Sought {
public:
  Sought(const nlohmann::json& component, const std::string& where);

  /// Calls `take(begin, end, matched)` for all parts of `text`.
  template <class Take>
  void for_each_part(std::string_view text, Take take) const {
    if (pattern_ != nullptr) {
      pattern_->for_each_part(text, take);
      return;
    }
    for (size_t at = 0; at < text.size();) {
      const size_t found = std::min(text.find(literal_, at), text.size());
      if (found > at) {
        take(at, found, false);
      }
      if (found < text.size()) {
        take(found, found + literal_.size(), true);
      }
      at = found + literal_.size();
    }
  }

  /// `text` with `content` for what is found; `ret_head` is the length of what is found at its
  /// beginning, else 0.
  [[nodiscard]] std::string
  replaced(std::string_view text, const std::string& content, size_t& ret_head) const;

private:
  std::string literal_;
  std::shared_ptr<const text::Pattern> pattern_; // null: the literal
};

} // namespace mh::hf
