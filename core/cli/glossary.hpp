#pragma once
/// Terms of the field, for people who meet one in a paper or another program: what each means, and
/// the key that sets it.

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

struct Term {
  std::string_view name;                ///< "ring attention"
  std::vector<std::string_view> also{}; ///< other names: "Ulysses", "CP"
  /// Two or three sentences. Keys of a recipe are in backquotes: `parallel.zero`.
  std::string_view text{};
};

/// All terms, by name without regard to case.
[[nodiscard]] std::span<const Term> glossary();

/// The term of a name, in which case does not matter, and spaces, dashes and underscores are the
/// same; null if it is none.
[[nodiscard]] const Term* find_term(std::string_view name);

} // namespace mh
