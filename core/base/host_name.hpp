#pragma once
/// The name of this machine, and of ranks by theirs.

#include <cstdint>
#include <string>

namespace mh {

/// The machine's name, the same that `hostname` prints; empty if it has none.
[[nodiscard]] std::string host_name();

/// "rank 3 on n2".
[[nodiscard]] std::string rank_on(int64_t rank, const std::string& host);

} // namespace mh
