#pragma once
/// The tokens of a tokenised corpus that make a sample.

#include <cstdint>
#include <vector>

namespace mh::indexed {

/// Consecutive tokens of one document.
struct DocumentRange {
  uint64_t document = 0;
  uint64_t first = 0;
  uint64_t count = 0;
};

/// Samples of a range of a dataset's documents, endlessly.
///
/// Thread:  any
class SampleOrder {
public:
  virtual ~SampleOrder() = default;

  /// Samples of an epoch.
  [[nodiscard]] virtual uint64_t size() const = 0;

  /// The pieces of sample `index`, one after the other. There must be samples in an epoch.
  [[nodiscard]] virtual std::vector<DocumentRange> sample(uint64_t index) const = 0;
};

} // namespace mh::indexed
