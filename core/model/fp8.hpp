#pragma once
/// Scales of GEMMs in FP8: one for each operand of each GEMM, found from the largest values
/// that the operand had in the steps before (delayed) or has now (current).
///
/// Within a step delayed scales do not change, so microbatches in any order, a pipeline and blocks
/// that are recomputed see the same ones; a step adds one entry to the history.

#include "megahost/builder.hpp"
#include "megahost/mesh.hpp"
#include "megahost/parameter.hpp"
#include "megahost/placement.hpp"
#include "megahost/step_state.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace mh {

enum class Fp8Operand : int64_t { input, weight, gradient };

/// A tensor in FP8.
struct Rounded {
  at::Tensor values;
  at::Tensor inverse; ///< float32 scalar: the true values are values * inverse
};

/// The scale that maps `amax` to the largest value of the format: (max / 2^margin) / amax, at most
/// the largest float32. `former` where amax is 0, infinite or NaN.
///
/// Shapes:  float32, all alike
/// Source:  Transformer Engine, common/recipe/delayed_scaling.cu
[[nodiscard]] at::Tensor
fp8_scale(const at::Tensor& amax, const at::Tensor& former, double largest, int64_t margin);

class Fp8State : public StepState {
public:
  explicit Fp8State(const Fp8Spec& spec)
      : spec_(spec) {}

  /// Adds a GEMM; its name is that of its first weight. Returns its index.
  int64_t add(const std::string& name);

  /// After the last `add`: makes scales of 1 and empty histories, as buffers of the store.
  void allocate(ParameterStore& store, at::Device device);

  /// Input and weight in E4M3, gradients in E5M2. Delayed: by the scale of this step; what is
  /// largest is remembered if `remember`. Current: by what is largest on all ranks that `placement`
  /// splits the tensor over along tp and cp.
  [[nodiscard]] Rounded round(
      int64_t product,
      Fp8Operand operand,
      const at::Tensor& x,
      bool remember,
      const Placement& placement,
      const Mesh& mesh
  );

  /// The end of a step: the largest values enter the histories, new scales follow.
  ///
  /// Ranks:   collective over tp, cp and dp
  void update(const Mesh& mesh) override;

  /// The step was skipped: forgets its largest values.
  void forget() override;

private:
  [[nodiscard]] at::Tensor current_scale(
      const at::Tensor& x, double largest, const Placement& placement, const Mesh& mesh
  ) const;

  Fp8Spec spec_;
  std::vector<std::string> names_;
  at::Tensor state_;   // [GEMMs, operands, 1 + history]: the scale, then the history
  at::Tensor scales_;  // its parts
  at::Tensor history_; // entry 0 is this step's, entry 1 the oldest
};

} // namespace mh
