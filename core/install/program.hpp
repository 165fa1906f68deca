#pragma once
/// Other programs, one after the other.

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace mh {

/// Runs a program of PATH and waits for it. It reads nothing; both its outputs are added to `log`.
///
/// variables:  of the environment, in addition to this process's own
/// Returns:    its exit status, 128 + n where a signal ended it
/// Throws:     mh::Error if it cannot be started
int run_program(
    std::vector<std::string> words,
    const std::filesystem::path& log,
    const std::vector<std::pair<std::string, std::string>>& variables = {}
);

/// Whether PATH has one; a name with a slash is a file.
[[nodiscard]] bool is_program(const std::string& name);

/// The end of a log, fit for a terminal, each line indented.
[[nodiscard]] std::string last_lines(const std::filesystem::path& log, size_t count);

} // namespace mh
