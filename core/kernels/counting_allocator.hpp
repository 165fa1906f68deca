#pragma once
/// Counts the memory that tensors on the Meta device would take elsewhere: they have none, but they
/// are asked for and released as others are.
///
///     mh::MetaMemory memory;
///     ... a step on the Meta device ...
///     memory.peak();

#include <cstdint>
#include <memory>

namespace mh {

/// Of the Meta tensors that the calling thread makes while the object lives.
class MetaMemory {
public:
  MetaMemory();
  ~MetaMemory();
  MetaMemory(const MetaMemory&) = delete;
  MetaMemory& operator=(const MetaMemory&) = delete;

  /// Bytes of the tensors that are there now.
  [[nodiscard]] int64_t used() const;
  /// The most that there were at a time.
  [[nodiscard]] int64_t peak() const;

  struct Count;

private:
  std::shared_ptr<Count> count_;
  std::shared_ptr<Count> former_; // of an object around this one
};

} // namespace mh
