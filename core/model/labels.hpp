#pragma once
/// Labels lie in the vocabulary. Those of a batch are looked at on the host, before they reach a
/// device that would have to be waited for: arrays "labels" and "NAME_labels", whose masks are
/// "loss_mask" and "NAME_loss_mask" (step/batches.cpp). A head looks at what it was given otherwise.

#include "megahost/context.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace mh {

/// The name of the mask of an array of labels; "" for other arrays.
[[nodiscard]] std::string mask_of_labels(std::string_view name);

/// How many labels that count lie outside: an int64 scalar.
[[nodiscard]] at::Tensor
labels_outside(const at::Tensor& labels, const at::Tensor& mask, int64_t vocab);

/// Throws:  mh::Error (exit code 5) if there are such
void require_labels(int64_t outside, int64_t vocab);

/// Whether these are arrays of the batch that were looked at before it was moved.
[[nodiscard]] bool
checked_on_host(const Batch& batch, const at::Tensor& labels, const at::Tensor& mask);

} // namespace mh
