#pragma once
/// The command line against the table of commands.

#include "core/cli/command.hpp"
#include "core/cli/invocation.hpp"

#include <string>
#include <vector>

namespace mh {

/// The command that the first words name, and how many words that took; null if they name none.
struct Named {
  const Command* command = nullptr;
  size_t words = 0;
};

[[nodiscard]] Named named_command(const std::vector<std::string>& words);

/// `words` are those behind the command's name.
///
/// Throws:  mh::Error, exit code 2, with the nearest option or the choices
[[nodiscard]] Invocation parse(const Command& command, const std::vector<std::string>& words);

} // namespace mh
