#include "config.hpp"

#include <megahost/error.hpp>
#include <megahost/nn/decoder_hugging_face.hpp>

#include <algorithm>

namespace mh::hybrid {

HfMapping hugging_face_mapping() {
  return {};
}

std::vector<HfTensor> hugging_face_names(const HybridConfig&) {
  return {};
}

} // namespace mh::hybrid
