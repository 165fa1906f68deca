#include "core/storage/copy_object.hpp"

#include <algorithm>

namespace mh {

uint64_t copy_object(
    Storage& from, const Path& path, Storage& to, const Path& copy, Storage::Existing existing
) {
  constexpr uint64_t kBlock = 8 << 20;
  const auto object = from.get(path);
  const uint64_t size = object->size();
  const auto upload = to.put(copy, existing);
  std::vector<std::byte> block(std::min(kBlock, size));
  for (uint64_t at = 0; at < size; at += block.size()) {
    const auto part = std::span(block).first(std::min<uint64_t>(block.size(), size - at));
    read_exactly(*object, at, part, path);
    upload->write(part);
  }
  upload->finish();
  return size;
}

} // namespace mh
