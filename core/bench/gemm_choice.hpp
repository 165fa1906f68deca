#pragma once
/// The choice of the float32 GEMM that is faster on this machine, measured once.

#include "core/kernels/gemm_choice.hpp"

#include <array>
#include <cstdint>
#include <string>

namespace mh {

/// GFLOP/s of the kernel of `gemm_` and of LibTorch's, by kind of GEMM: those of a linear layer
/// of 1,024 inputs and outputs over 1,024 tokens.
struct GemmRates {
  std::array<double, ops::kProductKinds.size()> own{}, libtorch{};
};

/// Takes about two seconds; the choice of the process stays.
[[nodiscard]] GemmRates time_gemm();

/// LibTorch for the kinds in which it is faster by more than timings vary.
[[nodiscard]] ops::GemmChoice faster_gemm(const GemmRates& rates);

/// The treatment of a machine whose GEMMs were not yet timed: two seconds of timing, or our GEMM.
enum class UnknownMachine : uint8_t { measure, own };

/// The choice of this machine as text (`ops::gemm_choice_of`): of environment variable
/// MEGAHOST_GEMM (`own`, `libtorch`, `auto`), or of the file gemm.json in the user's folder, for
/// the same processor, number of threads, kernels and LibTorch. A choice that is missing there is
/// measured and written, so that all later runs choose alike; if it cannot be written, or `unknown`
/// forbids it, the choice is `own`.
///
/// Throws:  mh::Error for another value of the variable, and for a file that cannot be read, or
///          holds something else
[[nodiscard]] std::string chosen_gemm(UnknownMachine unknown = UnknownMachine::measure);

} // namespace mh
