#pragma once
/// Functions by their addresses.

#include <string>

namespace mh {

/// "mh::Trainer::step() + 0x1b4 (libmegahost.so + 0x3fd1b4)": without the function where neither
/// the dynamic linker nor the file's own table of symbols knows it; `addr2line -e FILE` takes the
/// number in brackets.
///
/// `called`: the address is where a call returns to, which may lie behind the function's end
[[nodiscard]] std::string frame_text(const void* address, bool called);

} // namespace mh
