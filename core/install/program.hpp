#pragma once
/// Other programs, one after the other.

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace mh {

struct ProgramOptions {
  std::filesystem::path log;      ///< file to which its output is appended
  std::filesystem::path output{}; ///< gets its standard output instead
  /// Variables of the environment, in addition to this process's own.
  std::vector<std::pair<std::string, std::string>> variables{};
  double limit = 0; ///< seconds after which SIGKILL ends it; 0: none
};

/// Runs a program of PATH and waits for it. It reads nothing.
///
/// Returns:    its exit status, 128 + n where signal n ended it
/// Throws:     mh::Error if it cannot be started
int run_program(std::vector<std::string> words, const ProgramOptions& options);

/// A program of ours, which lies next to the library or program that this function is in.
[[nodiscard]] std::filesystem::path helper_program(const char* name);

/// Whether PATH has one; a name with a slash is a file.
[[nodiscard]] bool is_program(const std::string& name);

/// The end of a log, fit for a terminal, each line indented; before it the first line that begins
/// an error of a compiler or of meson, where that lies further up.
[[nodiscard]] std::string last_lines(const std::filesystem::path& log, size_t count);

} // namespace mh
