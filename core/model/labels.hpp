#pragma once
/// Labels lie in the vocabulary of the head that reads them. The end of a batch's labels is found
/// in host memory, before they reach a device that would have to be waited for (step/batches.cpp):
/// arrays "labels" and "NAME_labels", whose masks are "loss_mask" and "NAME_loss_mask". A head
/// looks at others itself.

#include "megahost/context.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mh {

/// The name of the mask of an array of labels; "" for other arrays.
[[nodiscard]] std::string mask_of_labels(std::string_view name);

/// One more than the largest label that counts, far more than any vocabulary where one of them is
/// negative; 0 if none counts: an int64 scalar.
[[nodiscard]] at::Tensor labels_end(const at::Tensor& labels, const at::Tensor& mask);

/// Batch::labels_end of these labels, if they are the batch's own.
[[nodiscard]] std::optional<int64_t>
known_labels_end(const Batch& batch, const at::Tensor& labels, const at::Tensor& mask);

/// Batch::counted of this mask, if it is the batch's own and the corpus says its share; else undefined.
[[nodiscard]] at::Tensor known_counted(const Batch& batch, const at::Tensor& mask);

/// Throws:  mh::Error (exit code 5) if labels that count lie outside the vocabulary
void require_labels(int64_t end, int64_t vocab);

} // namespace mh
