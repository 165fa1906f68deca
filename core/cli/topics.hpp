#pragma once
/// The topics of `megahost help TOPIC`, the reference pages and the manual page that are no
/// command, plugin or key: concepts, exit statuses and variables of the environment.

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

/// A page about one idea. The text is Markdown that reads well as it is.
struct Topic {
  std::string_view name; ///< "exit codes"
  std::string_view summary;
  std::string text;
  std::vector<std::string_view> also{}; ///< other words that people look for
};

struct ExitStatus {
  int code;
  std::string_view meaning;
};

struct Variable {
  std::string_view name;
  std::string_view doc;
};

[[nodiscard]] std::span<const Topic> topics();

/// A name as names are compared: in lower case, with blanks for dashes and underscores, without
/// leading dashes.
[[nodiscard]] std::string plain_name(std::string_view name);

/// The topic of a name or of another word for it (plain_name).
[[nodiscard]] const Topic* find_topic(std::string_view name);

/// Exit statuses of the program (error.hpp), those of signals left out.
[[nodiscard]] std::span<const ExitStatus> exit_statuses();

/// Variables of the environment that the program reads.
[[nodiscard]] std::span<const Variable> variables();

} // namespace mh
