#pragma once
/// The part of the shell in which training commands are written: variables, arrays, quotes,
/// continued lines, tests of strings. Nothing is run.

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace mh {

struct ShellCommand {
  std::vector<std::string> launcher;  ///< words before the program: torchrun --nproc_per_node 8
  std::string program;                ///< "/workspace/Megatron-LM/pretrain_gpt.py"
  std::vector<std::string> arguments; ///< words behind it
};

using ShellEnvironment = std::function<std::optional<std::string>(const std::string& name)>;

/// The first command of a script in which a word's file name is pretrain_NAME.py, its variables
/// expanded. A text that begins with "--" is the arguments alone.
///
/// Other commands of the script are left out. A variable that it does not set is looked up in
/// `environment`. Branches are followed if their tests compare texts or numbers, and cases if their
/// word is known.
/// `name`: of the text, in messages
/// `words`: the script's own command line: $1, $2, ...
/// Throws:  mh::Error if there is no such command, where the text is no shell (a quote without its
/// end), and where an argument depends on what is not read: a command's output, a word of the
/// script's own command line, a variable that is set nowhere or in a branch that cannot be followed
[[nodiscard]] ShellCommand find_training_command(
    const std::string& text,
    const std::string& name,
    const ShellEnvironment& environment,
    const std::vector<std::string>& words = {}
);

/// The training command among words that a launcher was given: theirs, or that of a script in one of
/// them (`bash -c "..."`). Nothing if there is none.
[[nodiscard]] std::optional<ShellCommand> training_command(
    const std::vector<std::string>& words,
    const std::string& name,
    const ShellEnvironment& environment
);

} // namespace mh
