#include "megahost/sample.hpp"

namespace mh {

std::vector<ArraySpec> decoder_arrays(int64_t seq_length) {
  using enum ArraySpec::Type;
  return {
      {"tokens", int64, axis::seq, seq_length},
      {"labels", int64, axis::seq, seq_length},
      {"loss_mask", float32, axis::seq, seq_length}};
}

} // namespace mh
