#pragma once
/// The operation that made the first NaN or Inf of a step: --debug listens for it. LibTorch calls
/// back before and after every operation; while it is off, nothing is asked.

#include <cstdint>
#include <memory>
#include <string>

namespace mh {

/// Looks at the results of every operation of the process, which takes several times as long. Masks
/// of -inf, which are meant, do not count. One at a time per process.
class NanWatch {
public:
  NanWatch();
  ~NanWatch();
  NanWatch(const NanWatch&) = delete;
  NanWatch& operator=(const NanWatch&) = delete;

  /// Assigns the operations that follow to this microbatch.
  void microbatch(int64_t number);

  /// Forgets what was found: those numbers came to nothing.
  void clear();

  /// "aten::log in layers.1/mlp, forward of microbatch 0"; empty if all operations whose inputs
  /// were finite had finite results.
  [[nodiscard]] std::string finding() const;

private:
  class Recorder;
  std::unique_ptr<Recorder> recorder_;
};

} // namespace mh
