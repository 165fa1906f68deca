#include "core/text/byte_level.hpp"

#include "core/text/utf8.hpp"

namespace mh::text {

std::vector<int32_t> ByteLevel::encode(std::string_view text) const {
  auto encoder = encoders_.take([&] { return std::make_unique<WordEncoder>(model); });
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3);
  special.split(text, [&](std::string_view part, int32_t id) {
    if (id != kNoId) {
      ids.push_back(id);
      return;
    }
    for_each_run(part, [&](std::string_view run, bool valid) {
      if (valid) {
        encoder->encode(run, *splitter, ids);
      } else {
        encoder->encode(run, ids);
      }
    });
  });
  encoders_.bring(std::move(encoder));
  return ids;
}

} // namespace mh::text
