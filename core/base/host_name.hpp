#pragma once
/// The name of this machine.

#include <string>

namespace mh {

/// As `hostname` prints it; empty if it has none.
[[nodiscard]] std::string host_name();

} // namespace mh
