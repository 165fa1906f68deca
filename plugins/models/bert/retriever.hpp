#pragma once
/// A retriever of two encoders: the fields, and what transformers calls its tensors.

#include "encoder.hpp"

#include <megahost/architecture.hpp>
#include <megahost/hugging_face.hpp>
#include <megahost/registry.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mh::bert {

struct RetrieverConfig : EncoderConfig {
  bool shared_towers = false;
  std::optional<int64_t> query_length;
  int64_t hard_negatives = 0;
  int64_t projection_dim = 0;
  bool score_scaling = false;
  std::vector<int64_t> report_top{1, 5};
};

/// The names of sequences and towers.
inline constexpr const char* kQuery = "query";
inline constexpr const char* kContext = "context";

/// The sequence of a sample's hard negative, from 1.
[[nodiscard]] inline std::string negative_name(int64_t number) {
  return "negative" + std::to_string(number);
}

/// transformers' DPR.
[[nodiscard]] HfMapping retriever_mapping();

/// Names of a model of these complete fields, both of whose encoders are in one folder; of shared
/// towers those of the question encoder. Empty where transformers has no counterpart.
[[nodiscard]] std::vector<HfTensor> retriever_names(const RetrieverConfig& config);

/// How a retriever starts from a BERT of ours: each tower from its encoder, projections from their
/// initial values.
[[nodiscard]] std::vector<Upcycled> upcycled_towers(const RetrieverConfig& config);

/// Adds the architecture.
void add_retriever(Registry& registry);

} // namespace mh::bert
