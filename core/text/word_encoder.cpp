#include "core/text/token_map.hpp"
#include "core/text/word_model.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

namespace mh::text {

namespace {

constexpr size_t kShortSlots = 1 << 16;
constexpr size_t kShortest = 15;
constexpr size_t kMostIds = 4;
constexpr size_t kLongestRemembered = 128;
constexpr size_t kMostLong = 1 << 15;
constexpr size_t kBatch = 256;

} // namespace

bool append_byte_tokens(
    const ByteTokens& tokens, std::string_view bytes, std::vector<int32_t>& ret_ids
) {
  const auto token = [&](char byte) { return tokens[static_cast<unsigned char>(byte)]; };
  if (std::ranges::any_of(bytes, [&](char byte) { return token(byte) == kNoId; })) {
    return false;
  }
  std::ranges::transform(bytes, std::back_inserter(ret_ids), token);
  return true;
}

WordEncoder::WordEncoder(const WordModel& model)
    : model_(model)
    , short_(kShortSlots) {}

/// `readable` is the end of the memory that may be read.
WordEncoder::Key WordEncoder::short_key(std::string_view word, const char* readable) {
  uint64_t low = 0, high = 0;
  const size_t size = word.size();
  if (readable - word.data() >= 16) {
    std::memcpy(&low, word.data(), 8);
    if (size < 8) {
      low &= (uint64_t{1} << 8 * size) - 1;
    } else {
      std::memcpy(&high, word.data() + 8, 8);
      high &= (uint64_t{1} << 8 * (size - 8)) - 1;
    }
  } else {
    std::memcpy(&low, word.data(), std::min<size_t>(size, 8));
    if (size > 8) {
      std::memcpy(&high, word.data() + 8, size - 8);
    }
  }
  return {low, high | uint64_t{size} << 56};
}

size_t WordEncoder::slot_of(Key key) {
  const uint64_t hash = (key.first ^ std::rotl(key.second, 23)) * 0x9E3779B97F4A7C15;
  return (hash ^ hash >> 29) >> 20 & (kShortSlots - 1);
}

const WordEncoder::Short* WordEncoder::find_short(Key key) const {
  const Short* slot = &short_[slot_of(key)];
  if (slot->low == key.first && slot->high == key.second) {
    return slot;
  }
  slot = &short_[slot_of(key) ^ 1];
  return slot->low == key.first && slot->high == key.second ? slot : nullptr;
}

std::span<const int32_t> WordEncoder::make_short(std::string_view word, Key key) {
  made_.clear();
  model_.encode(word, made_);
  if (!made_.empty() && made_.size() <= kMostIds) {
    Short& slot = short_[slot_of(key)];
    short_[slot_of(key) ^ 1] = slot;
    slot.low = key.first;
    slot.high = key.second;
    slot.ids.fill(kNoId);
    std::ranges::copy(made_, slot.ids.begin());
  }
  return made_;
}

std::span<const int32_t> WordEncoder::long_word(std::string_view word) {
  if (const auto found = long_.find(word); found != long_.end()) {
    return found->second;
  }
  made_.clear();
  model_.encode(word, made_);
  if (word.size() <= kLongestRemembered) {
    if (long_.size() >= kMostLong) {
      long_.clear();
    }
    long_.emplace(word, made_);
  }
  return made_;
}

void WordEncoder::encode(std::string_view word, std::vector<int32_t>& ret_ids) {
  std::span<const int32_t> ids;
  if (word.size() > kShortest) {
    ids = long_word(word);
  } else {
    const Key key = short_key(word, word.data() + word.size());
    if (const Short* found = find_short(key)) {
      ids =
          std::span(found->ids)
              .first(static_cast<size_t>(std::ranges::find(found->ids, kNoId) - found->ids.begin())
              );
    } else {
      ids = make_short(word, key);
    }
  }
  ret_ids.insert(ret_ids.end(), ids.begin(), ids.end());
}

void WordEncoder::encode(
    std::string_view text, const Splitter& splitter, std::vector<int32_t>& ret_ids
) {
  const char* const readable = text.data() + text.size();
  std::array<size_t, kBatch> ends{};
  size_t count = ret_ids.size(); // ids that are there; the vector is longer
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t words = splitter.ends(text, begin, ends);
    if (ret_ids.size() < count + kMostIds * kBatch) {
      ret_ids.resize(std::max(2 * count, count + kMostIds * kBatch));
    }
    for (size_t i = 0; i < words; ++i) {
      const std::string_view word(text.data() + begin, ends[i] - begin);
      begin = ends[i];
      std::span<const int32_t> ids;
      if (word.size() <= kShortest) {
        const Key key = short_key(word, readable);
        if (const Short* found = find_short(key)) {
          std::memcpy(ret_ids.data() + count, found->ids.data(), sizeof(found->ids));
          count += size_t{1} + (found->ids[1] != kNoId ? 1 : 0) + (found->ids[2] != kNoId ? 1 : 0) +
                   (found->ids[3] != kNoId ? 1 : 0);
          continue;
        }
        ids = make_short(word, key);
      } else {
        ids = long_word(word);
      }
      if (ret_ids.size() < count + ids.size() + kMostIds * kBatch) {
        ret_ids.resize(2 * count + ids.size() + kMostIds * kBatch);
      }
      std::ranges::copy(ids, ret_ids.begin() + static_cast<ptrdiff_t>(count));
      count += ids.size();
    }
  }
  ret_ids.resize(count);
}

} // namespace mh::text
