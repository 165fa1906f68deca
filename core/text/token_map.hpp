#pragma once
/// Maps of a vocabulary: tokens to ids, pairs of ids to what they become. Open addressing, one
/// block of memory each: vocabularies have up to half a million entries, and every word asks.

#include "megahost/error.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mh::text {

inline constexpr int32_t kNoId = -1;

[[nodiscard]] inline uint64_t mixed(uint64_t number) {
  number *= 0x9E3779B97F4A7C15;
  return number ^ number >> 32;
}

[[nodiscard]] inline uint64_t hash_of(std::string_view text) {
  uint64_t hash = text.size();
  while (text.size() >= 8) {
    uint64_t eight = 0;
    std::memcpy(&eight, text.data(), 8);
    hash = mixed(hash ^ eight);
    text.remove_prefix(8);
  }
  uint64_t rest = 0;
  std::memcpy(&rest, text.data(), text.size());
  return mixed(mixed(hash ^ rest));
}

/// Tokens and their ids.
class TokenMap {
public:
  /// Room for `count` tokens.
  void reserve(size_t count) { grow(std::bit_ceil(2 * count + 2)); }

  [[nodiscard]] size_t size() const { return count_; }

  /// Length of the longest token.
  [[nodiscard]] size_t longest() const { return longest_; }

  /// Returns: false if the token is there already; it keeps its id
  bool add(std::string_view token, int32_t id) {
    if (2 * (count_ + 1) > slots_.size()) {
      grow(std::max<size_t>(16, 2 * slots_.size()));
    }
    Slot& slot = slots_[place(token)];
    if (slot.id != kNoId) {
      return false;
    }
    MH_ASSERT(id >= 0 && token.size() < UINT32_MAX, "a token's id and length");
    slot = {bytes_.size(), static_cast<uint32_t>(token.size()), id};
    bytes_ += token;
    longest_ = std::max(longest_, token.size());
    ++count_;
    return true;
  }

  /// kNoId if it is not there.
  [[nodiscard]] int32_t find(std::string_view token) const {
    return token.size() > longest_ || slots_.empty() ? kNoId : slots_[place(token)].id;
  }

private:
  struct Slot {
    uint64_t begin = 0;
    uint32_t length = 0;
    int32_t id = kNoId;
  };

  [[nodiscard]] size_t place(std::string_view token) const {
    size_t at = hash_of(token) & (slots_.size() - 1);
    while (slots_[at].id != kNoId &&
           std::string_view(bytes_).substr(slots_[at].begin, slots_[at].length) != token) {
      at = (at + 1) & (slots_.size() - 1);
    }
    return at;
  }

  void grow(size_t slots) {
    std::vector<Slot> old(slots);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.id != kNoId) {
        slots_[place(std::string_view(bytes_).substr(slot.begin, slot.length))] = slot;
      }
    }
  }

  std::vector<Slot> slots_;
  std::string bytes_;
  size_t count_ = 0;
  size_t longest_ = 0;
};

/// The token that two neighbours become; merges of lower rank come first.
struct Merge {
  int32_t rank = kNoId;
  int32_t id = kNoId; ///< id of what they become
};

/// Pairs of ids and their merges.
class PairMap {
public:
  void reserve(size_t count) { grow(std::bit_ceil(2 * count + 2)); }

  [[nodiscard]] size_t size() const { return count_; }

  /// The merge of a pair, made if it is not there.
  Merge& operator()(int32_t left, int32_t right) {
    if (2 * (count_ + 1) > slots_.size()) {
      grow(std::max<size_t>(16, 2 * slots_.size()));
    }
    Slot& slot = slots_[place(key_of(left, right))];
    if (slot.key == kFree) {
      slot.key = key_of(left, right);
      ++count_;
    }
    return slot.merge;
  }

  /// Its `id` is kNoId if there is none.
  [[nodiscard]] Merge find(int32_t left, int32_t right) const {
    return slots_.empty() ? Merge() : slots_[place(key_of(left, right))].merge;
  }

private:
  static constexpr uint64_t kFree = UINT64_MAX; // a pair of kNoId, which never merge

  struct Slot {
    uint64_t key = kFree;
    Merge merge;
  };

  [[nodiscard]] static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }

  [[nodiscard]] size_t place(uint64_t key) const {
    size_t at = mixed(key) & (slots_.size() - 1);
    while (slots_[at].key != key && slots_[at].key != kFree) {
      at = (at + 1) & (slots_.size() - 1);
    }
    return at;
  }

  void grow(size_t slots) {
    std::vector<Slot> old(slots);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.key != kFree) {
        slots_[place(slot.key)] = slot;
      }
    }
  }

  std::vector<Slot> slots_;
  size_t count_ = 0;
};

/// A set of tokens, of which the longest that a text begins with is looked for.
class TokenTrie {
public:
  void add(std::string_view token, int32_t id) {
    int32_t node = 0;
    for (size_t i = 0; i < token.size(); ++i) {
      Merge& next = nodes_(node, static_cast<unsigned char>(token[i]));
      if (next.id == kNoId) {
        next.id = ++last_;
      }
      if (i + 1 == token.size()) {
        next.rank = id;
      }
      node = next.id;
    }
    first_[static_cast<unsigned char>(token[0])] = true;
  }

  [[nodiscard]] bool empty() const { return last_ == 0; }

  /// Whether a token begins with this byte.
  [[nodiscard]] bool begins(char byte) const { return first_[static_cast<unsigned char>(byte)]; }

  /// Calls `take(length, id)` for every token that `text` begins with, the shortest first.
  template <class Take>
  void for_each_prefix(std::string_view text, Take take) const {
    int32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const Merge next = nodes_.find(node, static_cast<unsigned char>(text[i]));
      if (next.id == kNoId) {
        return;
      }
      if (next.rank != kNoId) {
        take(i + 1, next.rank);
      }
      node = next.id;
    }
  }

  /// Length and id of the longest token that `text` begins with; length 0 if there is none.
  [[nodiscard]] std::pair<size_t, int32_t> longest_prefix(std::string_view text) const {
    std::pair<size_t, int32_t> found(0, kNoId);
    for_each_prefix(text, [&](size_t length, int32_t id) { found = {length, id}; });
    return found;
  }

private:
  PairMap nodes_; // (node, byte): id is the next node, rank the token that ends there
  int32_t last_ = 0;
  std::array<bool, 256> first_{};
};

} // namespace mh::text
