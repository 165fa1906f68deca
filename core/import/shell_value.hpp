#pragma once
/// Texts that a shell script makes, and what is not known of them.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace mh::shell {

/// A word, or part of one. If `unknown` is a sentence, the text depends on something that is not
/// read.
struct Word {
  std::string text;
  std::string unknown{};
  bool unset = false; ///< unknown because of nothing but variables that are set nowhere: empty here

  /// Adds what follows.
  void append(const Word& piece);
};

/// A variable: one word, or an array.
using ShellWords = std::vector<Word>;

using Variables = std::map<std::string, ShellWords, std::less<>>;

/// Sets $1, $2, ..., $@ and $#.
void set_command_line(Variables& ret_variables, ShellWords words);

/// The value of an integer expression of + - * / % and parentheses; nothing if it is none.
[[nodiscard]] std::optional<int64_t> arithmetic(const std::string& expression);

/// The result of `[ ... ]`, `[[ ... ]]` or `test ...` for these words; nothing if it asks for more
/// than texts and numbers.
[[nodiscard]] std::optional<bool> test_of(const ShellWords& words);

} // namespace mh::shell
