#pragma once
/// Counts the memory that tensors on the Meta device would take elsewhere: they have none, but they
/// are asked for and released as others are.
///
/// ```cpp
/// mh::MetaMemory memory;
/// // a step on the Meta device
/// const auto bytes = memory.peak();
/// ```

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace mh {

/// Counts the bytes of the Meta tensors that the calling thread makes while the object lives.
class MetaMemory {
public:
  MetaMemory();
  ~MetaMemory();
  MetaMemory(const MetaMemory&) = delete;
  MetaMemory& operator=(const MetaMemory&) = delete;

  /// Bytes of the tensors that are there now.
  [[nodiscard]] int64_t used() const;
  /// The most that there were at a time, or since `restart_peak`.
  [[nodiscard]] int64_t peak() const;
  void restart_peak();

  /// Bytes that a kernel takes while it runs, negative when it gives them back. They count in this
  /// peak alone.
  void lend(int64_t bytes);
  [[nodiscard]] int64_t working_peak() const;

  /// Counts the memory behind a tensor no longer: whoever asks answers for it from now on.
  ///
  /// Returns: its bytes; 0 if it was not counted
  static int64_t hand_over(const at::Tensor& tensor);

  struct Count;

private:
  std::shared_ptr<Count> count_;
  std::shared_ptr<Count> former_; // count of an object around this one
};

/// Tensors that the calling thread makes while the object lives are not counted.
class UncountedMemory {
public:
  UncountedMemory();
  ~UncountedMemory();
  UncountedMemory(const UncountedMemory&) = delete;
  UncountedMemory& operator=(const UncountedMemory&) = delete;

private:
  std::shared_ptr<MetaMemory::Count> former_;
};

} // namespace mh
