#pragma once
/// Regular expressions of tokenizers: PCRE2 with the classes of Unicode 16 written out as ranges,
/// as the library's own tables are as old as the machine.

#include "core/text/pattern_classes.hpp"
#include "core/text/splitter.hpp"

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

  /// The first match in `text`, valid UTF-8, that begins at `from` or later and is not empty.
  ///
  /// Returns: its begin and end
  [[nodiscard]] std::optional<std::pair<size_t, size_t>>
  find(std::string_view text, size_t from) const;

  /// Calls `take(begin, end, matched)` for all parts of `text`: matches and what lies between them.
  template <class Take>
  void for_each_part(std::string_view text, Take take) const {
    for (size_t at = 0; at < text.size();) {
      const auto [begin, end] = find(text, at).value_or(std::pair(text.size(), text.size()));
      if (begin > at) {
        take(at, begin, false);
      }
      if (end > begin) {
        take(begin, end, true);
      }
      at = end;
    }
  }

private:
  struct Code;
  std::unique_ptr<Code> code_;
};

/// Words are matches, and what lies between them.
[[nodiscard]] std::unique_ptr<Splitter> pattern_splitter(std::shared_ptr<const Pattern> pattern);

} // namespace mh::text
