#pragma once
/// Functions of source code, and the comments that stand before them.

#include <string>
#include <string_view>
#include <vector>

namespace mh::retrieval {

struct CommentedFunction {
  std::string comment; ///< its words, without the marks of comments and line breaks
  std::string code;    ///< the code behind it: a declaration, or a definition with its body
};

/// Comments of some words that something with a parenthesis follows, up to where its brackets are
/// closed or a line is blank: functions in the languages whose comments are `//`, `/* */`, or `#` or
/// `--` and a blank. Code has one blank where the text has several, or line breaks.
[[nodiscard]] std::vector<CommentedFunction> commented_functions(std::string_view text);

} // namespace mh::retrieval
