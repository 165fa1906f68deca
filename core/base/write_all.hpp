#pragma once
/// Writing to pipes, terminals and files that are open.

#include <string_view>

namespace mh {

/// Writes all of it, also across signals; false if the other end takes no more.
bool write_all(int descriptor, std::string_view bytes);

} // namespace mh
