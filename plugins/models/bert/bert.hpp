#pragma once
/// BERT's fields, and what transformers calls its tensors.

#include <megahost/hugging_face.hpp>
#include <megahost/nn/decoder.hpp>

#include <vector>

namespace mh::bert {

struct BertConfig : DecoderConfig {
  BertConfig() {
    causal = false;
    activation = "gelu";
    norm_placement = "post";
    norm_eps = 1e-12;
    scaled_init = false;
  }

  int64_t token_types = 2;
  bool pair_head = true;

  [[nodiscard]] bool post() const { return norm_placement == "post"; }
};

/// transformers' Bert (norms after the sums) and MegatronBert (before them).
[[nodiscard]] HfMapping hugging_face_mapping();

/// Names of a model of these complete fields; empty where transformers has no counterpart.
[[nodiscard]] std::vector<HfTensor> hugging_face_names(const BertConfig& config);

} // namespace mh::bert
