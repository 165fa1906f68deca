#pragma once
/// The texts of --help and help, from the table of commands and the topics.

#include "core/cli/command.hpp"
#include "core/cli/glossary.hpp"
#include "core/cli/topics.hpp"
#include "core/draw/terminal.hpp"

#include <string>
#include <string_view>

namespace mh {

/// The overview: what the program is, first steps, commands by group.
[[nodiscard]] std::string overview(const Terminal& terminal);

/// One command: usage, arguments, options, examples.
[[nodiscard]] std::string help(const Command& command, const Terminal& terminal);

/// The commands that begin with `group`, "recipe": one line each.
[[nodiscard]] std::string group_help(std::string_view group, const Terminal& terminal);

/// A concept's page.
[[nodiscard]] std::string topic_help(const Topic& topic, const Terminal& terminal);

/// A term of the field, with its other names.
[[nodiscard]] std::string term_help(const Term& term, const Terminal& terminal);

} // namespace mh
