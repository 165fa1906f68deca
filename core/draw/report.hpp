#pragma once
/// How the program tells that something failed.

#include "megahost/error.hpp"

#include <cstdint>
#include <exception>
#include <string>

namespace mh {

/// The error of memory that ran out when `bytes` more were asked for; 0: not known how many.
[[nodiscard]] Error out_of_memory(uint64_t bytes);

/// Prints "error: ..." and any hint as "help: ..." to standard error, and writes both to the files of
/// `tell_launcher`. Returns the exit status.
int report(const std::exception& error);

/// Writes what holds a run up, before it fails, to the file that TORCHELASTIC_ERROR_FILE names and to
/// the termination message of a pod (MEGAHOST_TERMINATION_LOG, or /dev/termination-log under
/// Kubernetes). An empty text takes it back.
void tell_launcher(const std::string& text);

/// The file of a pod's termination message; null where there is none.
[[nodiscard]] const char* termination_log();

/// Prints "warning: ..." to standard error.
void warn(const std::string& text);

} // namespace mh
