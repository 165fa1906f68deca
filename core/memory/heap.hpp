#pragma once
/// A heap over one range of addresses: the block that fits best is cut to size, and freed
/// neighbours are joined again. Untouched addresses take no memory of the machine.

#include <cstddef>
#include <cstdint>
#include <map>
#include <new>
#include <set>
#include <utility>

namespace mh {

/// The system refused memory.
class OutOfMemory : public std::bad_alloc {
public:
  explicit OutOfMemory(size_t bytes)
      : bytes_(bytes) {}

  [[nodiscard]] size_t bytes() const { return bytes_; }

private:
  size_t bytes_;
};

/// Not safe for several threads at once.
class Heap {
public:
  static constexpr size_t kAlignment = 64; ///< alignment of every block, and the unit of its size

  Heap() = default;
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;
  ~Heap();

  /// Throws:  OutOfMemory
  [[nodiscard]] void* take(size_t bytes);

  [[nodiscard]] bool owns(const void* block) const {
    return block >= base_ && block < base_ + end_;
  }

  /// Returns the bytes that were asked for.
  size_t give(void* block);

  /// Gives the pages of free blocks back to the system.
  void trim();

  /// Bytes that the system lent, and how often it was asked.
  [[nodiscard]] size_t held() const { return end_; }

  [[nodiscard]] int64_t requests() const { return requests_; }

private:
  struct Block {
    size_t size, asked;
    bool free;
  };

  using Blocks = std::map<char*, Block>;

  void reserve();
  Blocks::iterator grow(size_t size);
  void add_free(Blocks::iterator block);
  void remove_free(Blocks::iterator block);

  char* base_ = nullptr;
  size_t reserved_ = 0; // addresses
  size_t end_ = 0;      // end of what the system lent, from base_
  int64_t requests_ = 0;
  Blocks blocks_;
  std::set<std::pair<size_t, char*>> free_;
};

} // namespace mh
