#pragma once
/// The fields of BERT, and what transformers and Megatron-LM call its tensors.

#include "encoder.hpp"

#include <megahost/hugging_face.hpp>

#include <optional>
#include <string>
#include <vector>

namespace mh::bert {

struct BertConfig : EncoderConfig {
  bool pair_head = true;
  std::optional<std::string> head_activation;

  /// The activation of the head's dense layer.
  [[nodiscard]] const std::string& of_head() const {
    return head_activation ? *head_activation : activation;
  }
};

/// transformers' Bert (norms after the sums) and MegatronBert (before them).
[[nodiscard]] HfMapping hugging_face_mapping();

/// Names of a model of these complete fields; empty where transformers has no counterpart.
[[nodiscard]] std::vector<HfTensor> hugging_face_names(const BertConfig& config);

/// Names of a model of these complete fields at Megatron-LM; empty where its BertModel is another.
[[nodiscard]] std::vector<HfTensor> megatron_names(const BertConfig& config);

} // namespace mh::bert
