#pragma once
/// How one word becomes ids, and the encoder that remembers words.

#include "core/text/splitter.hpp"

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace mh::text {

/// Tokens <0x00> to <0xFF>, which stand for the bytes of characters without a token; kNoId where
/// the vocabulary lacks one.
using ByteTokens = std::array<int32_t, 256>;

/// Appends the tokens of bytes.
///
/// Returns: false, and appends nothing, if one of them has no token
bool append_byte_tokens(
    const ByteTokens& tokens, std::string_view bytes, std::vector<int32_t>& ret_ids
);

class WordModel {
public:
  virtual ~WordModel() = default;

  /// Appends the ids of a word that is not empty.
  ///
  /// Thread:  any
  virtual void encode(std::string_view word, std::vector<int32_t>& ret_ids) const = 0;
};

/// Appends the ids of words, and remembers those that are short or come often, in bounded memory.
///
/// Thread:  one
class WordEncoder {
public:
  explicit WordEncoder(const WordModel& model);

  void encode(std::string_view word, std::vector<int32_t>& ret_ids);

  /// All words of `text` as a splitter cuts it.
  void encode(std::string_view text, const Splitter& splitter, std::vector<int32_t>& ret_ids);

private:
  /// Words up to 15 bytes with up to 4 ids. A word may lie in two slots, which are neighbours.
  struct alignas(32) Short {
    uint64_t low = 0, high = 0; // the bytes, then their number; 0: free
    std::array<int32_t, 4> ids{};
  };

  struct Hash {
    using is_transparent = void;

    size_t operator()(std::string_view word) const { return std::hash<std::string_view>()(word); }
  };

  using Key = std::pair<uint64_t, uint64_t>;

  [[nodiscard]] static Key short_key(std::string_view word, const char* readable);
  [[nodiscard]] static size_t slot_of(Key key);
  [[nodiscard]] const Short* find_short(Key key) const;
  [[nodiscard]] std::span<const int32_t> make_short(std::string_view word, Key key);
  [[nodiscard]] std::span<const int32_t> long_word(std::string_view word);

  const WordModel& model_;
  std::vector<Short> short_;
  std::unordered_map<std::string, std::vector<int32_t>, Hash, std::equal_to<>> long_;
  std::vector<int32_t> made_;
};

/// Things that threads take and bring back.
template <class T>
class Pool {
public:
  /// One that no thread has taken, or else `make()`.
  template <class Make>
  [[nodiscard]] std::unique_ptr<T> take(Make make) const {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        auto one = std::move(idle_.back());
        idle_.pop_back();
        return one;
      }
    }
    return make();
  }

  void bring(std::unique_ptr<T> one) const {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(one));
  }

private:
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<T>> idle_;
};

} // namespace mh::text
