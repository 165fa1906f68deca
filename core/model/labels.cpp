#include "core/model/labels.hpp"

#include "megahost/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <limits>

namespace mh {

std::string mask_of_labels(std::string_view name) {
  constexpr std::string_view kLabels = "labels";
  const std::string_view before =
      name.substr(0, name.size() - std::min(name.size(), kLabels.size()));
  const bool whole = name == kLabels || (name.ends_with(kLabels) && before.ends_with('_'));
  return whole ? std::string(before) + "loss_mask" : "";
}

at::Tensor labels_end(const at::Tensor& labels, const at::Tensor& mask) {
  constexpr int64_t kBeyond = std::numeric_limits<int64_t>::max();
  const at::Tensor end = at::where(labels.lt(0), kBeyond, labels + 1);
  return end.masked_fill(mask.eq(0), 0).max();
}

std::optional<int64_t>
known_labels_end(const Batch& batch, const at::Tensor& labels, const at::Tensor& mask) {
  for (const auto& [name, end] : batch.labels_end) {
    const auto found = batch.arrays.find(name), masked = batch.arrays.find(mask_of_labels(name));
    if (found != batch.arrays.end() && found->second.is_same(labels) &&
        masked != batch.arrays.end() && masked->second.is_same(mask)) {
      return end;
    }
  }
  return std::nullopt;
}

at::Tensor known_counted(const Batch& batch, const at::Tensor& mask) {
  for (const auto& [name, indices] : batch.counted) {
    const auto found = batch.arrays.find(name);
    if (found != batch.arrays.end() && found->second.is_same(mask)) {
      return indices;
    }
  }
  return {};
}

void require_labels(int64_t end, int64_t vocab) {
  if (end > vocab) {
    throw Error(
        "labels of this batch lie outside the model's vocabulary of " + std::to_string(vocab) +
            " entries",
        "give the model the tokenizer's vocabulary",
        exit_code::data
    );
  }
}

} // namespace mh
