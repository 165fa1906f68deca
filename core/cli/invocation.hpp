#pragma once
/// One call of the program, parsed. The thin program makes it, libmegahost's commands read it.

#include "megahost/export.hpp"

#include <map>
#include <string>
#include <vector>

namespace mh {

struct Invocation {
  std::string command;                ///< "run", "recipe check"
  std::vector<std::string> arguments; ///< the words that are no options, in order
  /// Values by the option's name, "--set"; flags have none.
  std::map<std::string, std::vector<std::string>> options;
  std::string program = "megahost"; ///< how the user called the program
  /// The words of this process, the program first: ranks that it starts get them, too.
  std::vector<std::string> command_line{};

  [[nodiscard]] bool has(const std::string& option) const { return options.contains(option); }

  /// Values of a repeatable option, in the order in which they were given.
  [[nodiscard]] std::vector<std::string> all(const std::string& option) const {
    const auto found = options.find(option);
    return found == options.end() ? std::vector<std::string>{} : found->second;
  }

  /// The value of an option; `otherwise` if it was not given.
  [[nodiscard]] std::string
  value(const std::string& option, const std::string& otherwise = "") const {
    const auto values = all(option);
    return values.empty() ? otherwise : values.back();
  }
};

} // namespace mh

/// Runs a command that needs LibTorch; prints its errors. Returns the exit status.
extern "C" MH_API int mh_run_command(const mh::Invocation& invocation);
