#pragma once
/// Dropout in a program: masks of the same numbers as on the host, by operators of LibTorch.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace mh::program {

/// Inputs that change from step to step: dropout was recorded for a step of seed 0 that begins with
/// sample 0. All are int32 scalars.
struct DropoutNumbers {
  at::Tensor key_low, key_high; ///< words of what a step's keys differ by: see `dropout_bits`
  at::Tensor sample;            ///< first sample of the step
};

/// By what a step's keys differ, bit by bit, from those of seed 0 (core/nn/dropout.cpp).
[[nodiscard]] uint64_t dropout_bits(uint64_t seed);

/// `mh::ops::dropout` of a step, in 32 bits: some devices that compile programs have no products of
/// 64 bits.
///
/// Shapes:  x [tokens, batch, features]; samples [batch]; tokens [tokens]
/// Source:  Salmon et al. 2011, Philox4x32-10
[[nodiscard]] at::Tensor dropout_form(
    const at::Tensor& x,
    double p,
    int64_t key,
    const at::Tensor& samples,
    const at::Tensor& tokens,
    int64_t first_feature,
    const DropoutNumbers& numbers
);

} // namespace mh::program
