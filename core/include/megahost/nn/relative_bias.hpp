#pragma once
/// A learned bias of attention scores by how far a key lies from its query, as in T5.

#include "megahost/builder.hpp"
#include "megahost/context.hpp"
#include "megahost/export.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace mh {

struct RelativeBiasSpec {
  int64_t buckets = 32;
  int64_t max_distance = 128; ///< from which on all distances share the last bucket
  bool bidirectional = true;  ///< half of the buckets are for keys after the query
  double std = 0.02;          ///< initial values
  std::string table{}; ///< global name of the table of a block before this one; empty: its own
};

/// The bucket of each distance (index of the key - index of the query): one for each short
/// distance, then logarithmic ones up to max_distance.
///
/// Source:  arXiv:1910.10683 section 2.1; `_relative_position_bucket` of T5 in transformers
[[nodiscard]] MH_API int64_t relative_bucket(int64_t distance, const RelativeBiasSpec& spec);

/// A table over buckets, for each head. Several layers, on any pipeline stages, may share one.
///
/// Parameters: `weight` [heads, buckets], unless `spec.table` names another's
class MH_API RelativeBias {
public:
  RelativeBias(Builder& builder, int64_t heads, const RelativeBiasSpec& spec);

  /// The bias of distances from -(length - 1) to length - 1: what `attend` takes.
  ///
  /// Shapes:  -> [heads of this rank, 2 length - 1] float32 (float64 in float64 models)
  [[nodiscard]] at::Tensor forward(int64_t length, StepContext& context) const;

private:
  RelativeBiasSpec spec_;
  Parameter* weight_;
};

} // namespace mh
