#pragma once
/// Work in a child process, so that whatever it does leaves this one alone.

#include <chrono>
#include <functional>
#include <string>

namespace mh {

struct ChildResult {
  std::string text;    ///< result of the work; empty if it did not finish
  std::string printed; ///< the end of what it wrote to both outputs
  std::string ended; ///< why there is no text: "Aborted", "still running after 20 seconds", or the
                     ///< words of what was thrown; empty where there is one, never else

  /// `ended`, and the first line of what it printed: a crash says there where it was.
  [[nodiscard]] std::string ended_and_printed() const;
};

/// Forks, runs `work` with both outputs redirected, and waits for it.
///
/// Thread:  from a process that has no threads of its own yet
/// Throws:  mh::Error if there is no child process to be had
[[nodiscard]] ChildResult
in_child(const std::function<std::string()>& work, std::chrono::seconds patience);

} // namespace mh
