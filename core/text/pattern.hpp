#pragma once
/// Regular expressions of tokenizers: PCRE2 with the classes of Unicode 16 written out as ranges,
/// as the library's own tables are as old as the machine.

#include "core/text/pattern_classes.hpp"
#include "core/text/splitter.hpp"
#include "core/text/utf8.hpp"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace mh::text {

class Pattern {
public:
  /// Throws:  mh::Error (exit code 5) "WHERE: ..." for an expression that is wrong, or has a class
  ///          or escape of which there is no table here
  Pattern(std::string_view expression, Dialect dialect, const std::string& where);
  ~Pattern();
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;

  /// The begin and end of a match.
  using Match = std::pair<size_t, size_t>;

  /// The first match in `text`, valid UTF-8, that begins at `from` or later. It may be empty.
  [[nodiscard]] std::optional<Match> find(std::string_view text, size_t from) const;

  /// The first match behind the one that ends at `end`, which no empty one follows at once.
  [[nodiscard]] std::optional<Match> find_behind(std::string_view text, size_t end) const {
    const auto match = find(text, end);
    return !match || *match != Match(end, end) ? match
           : end == text.size()                ? std::nullopt
                                               : find(text, end + first_length(text.substr(end)));
  }

  /// Calls `take(begin, end, matched)` for all parts of `text`: matches and what lies between them.
  template <class Take>
  void for_each_part(std::string_view text, Take take) const {
    size_t at = 0;
    auto match = text.empty() ? std::nullopt : find(text, 0);
    for (; match; match = find_behind(text, at)) {
      if (match->first > at) {
        take(at, match->first, false);
      }
      take(match->first, match->second, true);
      at = match->second;
    }
    if (at < text.size()) {
      take(at, text.size(), false);
    }
  }

private:
  struct Code;
  std::unique_ptr<Code> code_;
};

/// Words are matches, and what lies between them.
[[nodiscard]] std::unique_ptr<Splitter> pattern_splitter(std::shared_ptr<const Pattern> pattern);

} // namespace mh::text
