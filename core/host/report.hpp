#pragma once
/// How the program tells that something failed.

#include <exception>

namespace mh {

/// Prints "error: ..." and any hint as "help: ..." to standard error. Returns the exit status.
int report(const std::exception& error);

} // namespace mh
