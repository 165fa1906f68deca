#pragma once
/// How the program tells that something failed.

#include "megahost/error.hpp"

#include <cstdint>
#include <exception>
#include <string>

namespace mh {

/// The error of memory that ran out when `bytes` more were asked for; 0: not known how many.
[[nodiscard]] Error out_of_memory(uint64_t bytes);

/// Prints "error: ..." and any hint as "help: ..." to standard error, and writes both to the file
/// that TORCHELASTIC_ERROR_FILE names. Returns the exit status.
int report(const std::exception& error);

/// Prints "warning: ..." to standard error.
void warn(const std::string& text);

} // namespace mh
