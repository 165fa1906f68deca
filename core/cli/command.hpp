#pragma once
/// The commands of the program as data: parsing and help are made from it.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mh {

/// An option of a command.
struct Option {
  std::string name; ///< "--set"
  std::string
      value; ///< "KEY=VALUE"; empty: a flag, which may take one of its choices: --flag=CHOICE
  std::string doc;
  bool repeatable = false;
  std::vector<std::string> choices{};
};

/// A word of a command that is no option.
struct Argument {
  /// "RECIPE"; "[RECIPE]" may be left out; "INPUT...", the last one of a command: one or more
  /// words.
  std::string name;
  std::string doc;
};

struct Example {
  std::string command, doc;
};

struct Command {
  std::string name;    ///< "run", "recipe check"
  std::string group;   ///< heading in the overview
  std::string summary; ///< one line
  std::string about;   ///< paragraphs below it in the command's own help
  std::vector<Argument> arguments{};
  std::vector<Option> options{};
  std::vector<Example> examples{};
};

/// Every command there is, in the order of the overview.
[[nodiscard]] const std::vector<Command>& commands();

[[nodiscard]] const Command* find_command(std::string_view name);

/// "megahost recipe explain RECIPE KEY... [OPTION...]".
[[nodiscard]] std::string usage(const Command& command);

/// Each argument and option with its meaning: "--format FORMAT", "language of the output: toml,
/// lua, json".
[[nodiscard]] std::vector<std::pair<std::string, std::string>> words_of(const Command& command);

} // namespace mh
