#pragma once
/// `.metadata` of torch.distributed.checkpoint as PyTorch writes it.

#include <string>
#include <string_view>

namespace mh::test {

/// The text of `dcp_metadata_text` with its checksum under a name that no reader knows.
inline std::string without_checksum(std::string metadata) {
  constexpr std::string_view kName = "megahost.crc32c", kOther = "somebody.crc32c";
  return metadata.replace(metadata.rfind(kName), kName.size(), kOther);
}

} // namespace mh::test
