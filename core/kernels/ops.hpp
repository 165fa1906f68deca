#pragma once
/// The dispatcher operators of our own, registered once and explicitly, with CPU, CUDA and Meta
/// kernels; and shape functions for operators that LibTorch lacks on the Meta device in C++.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace mh::ops {

/// Registers everything; later calls do nothing. Models call it before they are built.
void ensure_registered();

/// table[ids[i]] += rows[i], for rows in order; ids below 0 are left out.
///
/// Shapes:  table [n, d] float32 or float64; ids [k] int64; rows [k, d] any float
void embedding_add_(at::Tensor table, const at::Tensor& ids, const at::Tensor& rows);

/// x * mask / (1 - p), where the mask is a function of (key, sample, token, feature).
///
/// Shapes:  x [seq, batch, features] contiguous; samples [batch], tokens [seq] int64
at::Tensor dropout(
    const at::Tensor& x,
    double p,
    int64_t key,
    const at::Tensor& samples,
    const at::Tensor& tokens,
    int64_t first_feature
);

} // namespace mh::ops
