#include "core/text/charsmap.hpp"

#include "megahost/error.hpp"

namespace mh::text {

namespace {

/// One unit of the array: a label to be compared with, the way to its children, a leaf or none.
struct TrieUnit {
  uint32_t bits;

  [[nodiscard]] uint32_t label() const { return bits & 0x800000FF; }

  [[nodiscard]] uint32_t offset() const { return bits >> 10 << ((bits & 0x200) >> 6); }

  [[nodiscard]] bool has_leaf() const { return (bits & 0x100) != 0; }

  [[nodiscard]] uint32_t value() const { return bits & 0x7FFFFFFF; }
};

uint32_t little_endian(std::string_view text, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) {
    value |= static_cast<uint32_t>(static_cast<unsigned char>(text[at + i])) << 8 * i;
  }
  return value;
}

} // namespace

Charsmap::Charsmap(std::string_view blob, const std::string& where) {
  if (blob.empty()) {
    return;
  }
  const size_t size = blob.size() < 4 ? 0 : little_endian(blob, 0);
  if (size == 0 || size % 4 != 0 || size > blob.size() - 4) {
    throw Error(
        where + ": the table of replacements has " + std::to_string(blob.size()) +
            " bytes, and claims a trie of " + std::to_string(size),
        "the file is damaged or cut short: get it anew",
        exit_code::data
    );
  }
  units_.reserve(size / 4);
  for (size_t at = 4; at < 4 + size; at += 4) {
    units_.push_back(little_endian(blob, at));
  }
  strings_ = blob.substr(4 + size);
}

/// Each step takes a byte of the text, so that no trie, however wrong, goes round forever.
template <class Take>
void Charsmap::for_each_prefix(std::string_view text, Take take) const {
  if (units_.empty()) {
    return;
  }
  uint32_t place = TrieUnit{units_[0]}.offset();
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    place ^= byte;
    if (place >= units_.size() || TrieUnit{units_[place]}.label() != byte) {
      return;
    }
    const TrieUnit unit{units_[place]};
    place ^= unit.offset();
    if (unit.has_leaf() && place < units_.size() && !take(i + 1, TrieUnit{units_[place]}.value())) {
      return;
    }
  }
}

Charsmap::Match Charsmap::match(size_t length, uint32_t place) const {
  const std::string_view all = strings_;
  const std::string_view rest = all.substr(std::min<size_t>(place, all.size()));
  return {length, rest.substr(0, rest.find('\0'))};
}

std::optional<Charsmap::Match> Charsmap::longest(std::string_view text) const {
  std::optional<std::pair<size_t, uint32_t>> found;
  for_each_prefix(text, [&](size_t length, uint32_t place) {
    found.emplace(length, place);
    return true;
  });
  return found ? std::optional(match(found->first, found->second)) : std::nullopt;
}

std::optional<Charsmap::Match> Charsmap::shortest(std::string_view text) const {
  std::optional<Match> found;
  for_each_prefix(text, [&](size_t length, uint32_t place) {
    found = match(length, place);
    return false;
  });
  return found;
}

} // namespace mh::text
