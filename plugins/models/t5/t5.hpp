#pragma once
/// T5's fields, and what transformers and Megatron-LM call its tensors.

#include <megahost/architecture.hpp>
#include <megahost/hugging_face.hpp>
#include <megahost/schema.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mh::t5 {

struct T5Config {
  int64_t encoder_layers = 6;
  int64_t layers = 6; ///< layers of the decoder
  int64_t hidden = 512;
  int64_t heads = 8;
  std::optional<int64_t> head_dim;
  std::optional<int64_t> ffn_hidden;
  std::optional<int64_t> vocab;
  int64_t encoder_length = 512;
  std::string norm = "rmsnorm";
  double norm_eps = 1e-6;
  std::string activation = "relu";
  std::string positions = "relative";
  int64_t buckets = 32;
  int64_t max_distance = 128;
  double rope_base = 10000;
  bool bias = false;
  bool tied = true;
  std::optional<bool> head_scale;
  double dropout = 0;
  double attention_dropout = 0;
  std::optional<double> init_std;
  bool scaled_init = false;

  [[nodiscard]] bool relative() const { return positions == "relative"; }

  [[nodiscard]] bool rotary() const { return positions == "rope"; }
};

/// transformers' T5, v1.1 and Flan too.
[[nodiscard]] HfMapping hugging_face_mapping();

/// Names of a model of these complete fields; empty where transformers has no counterpart.
[[nodiscard]] std::vector<HfTensor> hugging_face_names(const T5Config& config);

/// Names of a model of these complete fields at Megatron-LM; empty where its T5Model is another.
[[nodiscard]] std::vector<HfTensor> megatron_names(const T5Config& config);

} // namespace mh::t5
