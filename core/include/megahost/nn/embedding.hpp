#pragma once
/// Word and position embeddings.

#include "megahost/builder.hpp"
#include "megahost/context.hpp"
#include "megahost/export.hpp"

#include <ATen/core/Tensor.h>

namespace mh {

/// Rows of a table by id.
///
/// A mapped `rows` axis splits the table: each rank looks up its own ids and the partial results
/// are reduced. Rows beyond the true size exist only as local padding.
///
/// Shapes:  ids [seq, batch] int64 -> [seq, batch, embed]
class MH_API Embedding {
public:
  /// Makes `weight` [rows, embed] with N(0, std).
  Embedding(Builder& builder, Axis rows, Axis embed, double std);

  /// Over the table of a block before this one (Builder::shared): an encoder's and a decoder's
  /// words.
  Embedding(Builder& builder, Axis rows, Axis embed, Parameter& weight);

  [[nodiscard]] at::Tensor forward(const at::Tensor& ids, StepContext& context) const;

  [[nodiscard]] Parameter& weight() const { return *weight_; }

private:
  Parameter* weight_;
  void place(Builder& builder, Axis rows);

  Axis embed_;
  Placement made_;    // placement of the looked-up rows before conversion
  int64_t first_ = 0; // first row of this rank
  int64_t rows_ = 0;  // rows of this rank
  bool split_ = false;
};

} // namespace mh
