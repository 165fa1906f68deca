#pragma once
/// What the commands on corpora share.

#include "core/cli/invocation.hpp"
#include "megahost/host.hpp"

#include <cstdint>
#include <string>

namespace mh {

/// "1,234 files", "1 file".
[[nodiscard]] std::string count_text(uint64_t count, const char* what);

/// `data prepare --format tokens`: flat files of ids.
int prepare_tokens(const Invocation& invocation, Host& host);

} // namespace mh
