#include "core/memory/heap.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

namespace mh {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kGrowth = 16 * kHugePage; // at least

size_t rounded(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

} // namespace

Heap::~Heap() {
  if (base_ != nullptr) {
    munmap(base_, reserved_);
  }
}

/// Addresses for four times the machine's memory, or as many as there are: they cost nothing.
void Heap::reserve() {
  const auto machine =
      static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (size_t bytes = rounded(4 * machine, kHugePage); bytes >= kGrowth; bytes /= 2) {
    void* range =
        mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range != MAP_FAILED) {
      base_ = static_cast<char*>(range);
      reserved_ = bytes;
      madvise(range, bytes, MADV_HUGEPAGE); // where it cannot be, small pages do
      return;
    }
  }
  throw OutOfMemory(kGrowth);
}

/// A free block of at least that size at the end.
Heap::Blocks::iterator Heap::grow(size_t size) {
  if (base_ == nullptr) {
    reserve();
  }
  auto last = blocks_.empty() ? blocks_.end() : std::prev(blocks_.end());
  const size_t there = last != blocks_.end() && last->second.free ? last->second.size : 0;
  const size_t least = rounded(size - there, kHugePage);
  const size_t more = std::max(least, std::min(kGrowth, reserved_ - end_));
  if (more > reserved_ - end_ || mprotect(base_ + end_, more, PROT_READ | PROT_WRITE) != 0) {
    throw OutOfMemory(size);
  }
  requests_ += 1;
  if (there > 0) {
    remove_free(last);
    last->second.size += more;
  } else {
    last = blocks_.emplace(base_ + end_, Block{more, 0, true}).first;
  }
  end_ += more;
  add_free(last);
  return last;
}

void* Heap::take(size_t bytes) {
  const size_t size = rounded(std::max<size_t>(bytes, 1), kAlignment);
  const auto fit = free_.lower_bound({size, nullptr});
  const auto block = fit == free_.end() ? grow(size) : blocks_.find(fit->second);
  remove_free(block);
  if (const size_t rest = block->second.size - size; rest > 0) {
    add_free(blocks_.emplace(block->first + size, Block{rest, 0, true}).first);
  }
  block->second = {size, bytes, false};
  return block->first;
}

size_t Heap::give(void* data) {
  auto block = blocks_.find(static_cast<char*>(data));
  const size_t asked = block->second.asked;
  block->second.free = true;
  if (const auto next = std::next(block); next != blocks_.end() && next->second.free) {
    remove_free(next);
    block->second.size += next->second.size;
    blocks_.erase(next);
  }
  if (block != blocks_.begin() && std::prev(block)->second.free) {
    const auto before = std::prev(block);
    remove_free(before);
    before->second.size += block->second.size;
    blocks_.erase(block);
    block = before;
  }
  add_free(block);
  return asked;
}

void Heap::trim() {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (const auto& [size, data] : free_) {
    const size_t begin = rounded(static_cast<size_t>(data - base_), page);
    const size_t end = (static_cast<size_t>(data - base_) + size) / page * page;
    if (begin < end) {
      madvise(base_ + begin, end - begin, MADV_DONTNEED);
    }
  }
}

void Heap::add_free(Blocks::iterator block) {
  free_.emplace(block->second.size, block->first);
}

void Heap::remove_free(Blocks::iterator block) {
  free_.erase({block->second.size, block->first});
}

} // namespace mh
