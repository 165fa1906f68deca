#include "core/model/labels.hpp"

#include "megahost/error.hpp"

#include <ATen/TensorOperators.h>

#include <algorithm>

namespace mh {

std::string mask_of_labels(std::string_view name) {
  constexpr std::string_view kLabels = "labels";
  const std::string_view before =
      name.substr(0, name.size() - std::min(name.size(), kLabels.size()));
  const bool whole = name == kLabels || (name.ends_with(kLabels) && before.ends_with('_'));
  return whole ? std::string(before) + "loss_mask" : "";
}

at::Tensor labels_outside(const at::Tensor& labels, const at::Tensor& mask, int64_t vocab) {
  return labels.lt(0).bitwise_or(labels.ge(vocab)).bitwise_and(mask.ne(0)).sum();
}

void require_labels(int64_t outside, int64_t vocab) {
  if (outside > 0) {
    throw Error(
        "labels of this batch lie outside the model's vocabulary of " + std::to_string(vocab) +
            " entries",
        "give the model the tokenizer's vocabulary",
        exit_code::data
    );
  }
}

bool checked_on_host(const Batch& batch, const at::Tensor& labels, const at::Tensor& mask) {
  for (const auto& [name, array] : batch.arrays) {
    if (array.is_same(labels)) {
      const auto found = batch.arrays.find(mask_of_labels(name));
      return found != batch.arrays.end() && found->second.is_same(mask) &&
             mask.sizes() == labels.sizes();
    }
  }
  return false;
}

} // namespace mh
