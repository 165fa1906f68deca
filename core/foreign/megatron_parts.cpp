#include "core/foreign/megatron_parts.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

namespace mh {

namespace {

/// How many rows a part has: those of the layer's inner width, one of each head, or an equal share
/// of what the others leave.
enum class RowCount : uint8_t { inner, heads, shared };

struct NamedRows {
  std::string_view name;
  RowCount rows = RowCount::shared;
};

struct Joined {
  std::string_view name;
  std::array<NamedRows, 6> parts; ///< the last ones may have no name
};

constexpr std::array<NamedRows, 6> kMambaChannels{
    {{"x", RowCount::inner}, {"B", RowCount::shared}, {"C", RowCount::shared}}};

constexpr Joined kJoined[] = {
    {"mixer.in_proj.weight",
     {{{"z", RowCount::inner},
       {"x", RowCount::inner},
       {"B", RowCount::shared},
       {"C", RowCount::shared},
       {"dt", RowCount::heads}}}},
    {"mixer.conv1d.weight", kMambaChannels},
    {"mixer.conv1d.bias", kMambaChannels}};

const Joined* joined(std::string_view name) {
  const auto* found = std::ranges::find(kJoined, name, &Joined::name);
  return found == std::end(kJoined) ? nullptr : found;
}

} // namespace

bool is_joined(std::string_view name) {
  return joined(name) != nullptr;
}

std::vector<JoinedPart>
joined_parts(std::string_view name, int64_t rows, int64_t inner, int64_t heads) {
  const Joined* known = joined(name);
  if (known == nullptr || inner < 1 || heads < 1 || inner > rows || heads > rows) {
    return {};
  }
  int64_t left = rows, sharing = 0;
  for (const NamedRows& part : known->parts) {
    if (!part.name.empty()) {
      left -= part.rows == RowCount::inner ? inner : part.rows == RowCount::heads ? heads : 0;
      sharing += part.rows == RowCount::shared ? 1 : 0;
    }
  }
  if (left <= 0 || left % sharing != 0) {
    return {};
  }
  std::vector<JoinedPart> parts;
  int64_t row = 0;
  for (const NamedRows& part : known->parts) {
    if (!part.name.empty()) {
      const int64_t count = part.rows == RowCount::inner   ? inner
                            : part.rows == RowCount::heads ? heads
                                                           : left / sharing;
      parts.push_back({std::string(name) + "." + std::string(part.name), row, count});
      row += count;
    }
  }
  return parts;
}

} // namespace mh
