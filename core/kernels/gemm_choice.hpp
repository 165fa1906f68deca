#pragma once
/// The choice of what multiplies float32 matrices on the CPU: the kernel of `gemm_`, or LibTorch's
/// library.
///
/// The faster one depends on the CPU's make, so it is measured (`core/bench/gemm_choice.hpp`). Both
/// give the same bits each time, but not the same bits as one another.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace mh::ops {

/// The GEMMs of a linear layer: x Wᵀ, dy W, and the sum of dyᵀ x.
enum class ProductKind : uint8_t { output, input_gradient, weight_gradient };
inline constexpr std::array kProductKinds{
    ProductKind::output, ProductKind::input_gradient, ProductKind::weight_gradient};

/// "output", "input gradient", "weight gradient"
[[nodiscard]] std::string_view to_string(ProductKind kind);

/// The kinds that LibTorch multiplies; none unless `use_gemm` said so.
struct GemmChoice {
  std::array<bool, kProductKinds.size()> libtorch{};

  [[nodiscard]] bool operator[](ProductKind kind) const {
    return libtorch[static_cast<size_t>(kind)];
  }

  bool& operator[](ProductKind kind) { return libtorch[static_cast<size_t>(kind)]; }

  bool operator==(const GemmChoice&) const = default;
};

/// The kinds of LibTorch, separated by ", "; empty for none.
[[nodiscard]] std::string to_string(const GemmChoice& choice);

/// Throws:  mh::Error for a kind that there is not
[[nodiscard]] GemmChoice gemm_choice_of(std::string_view text);

/// The choice of this process.
[[nodiscard]] const GemmChoice& gemm_choice();
void use_gemm(const GemmChoice& choice);

} // namespace mh::ops
