#pragma once
/// The work of a step's operators: which of them work, and how much.

#include "core/plan/cost.hpp"
#include "core/plan/recorder.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <string_view>

namespace mh {

using Inputs = c10::ArrayRef<const c10::IValue>;

/// How an operator's work is found.
enum class WorkKind : uint8_t {
  nothing,   ///< makes room, or looks at it in another way
  mm,        ///< (a, b)
  addmm,     ///< (c, a, b)
  attention, ///< LibTorch's fused kernels
  factors,   ///< QR and eigenvectors of a matrix
  own,       ///< ours: cost.hpp
  writes,    ///< in place, without reading what was there
  updates,   ///< in place
  other,     ///< reads its inputs, writes its outputs
};

struct Operator {
  WorkKind what = WorkKind::other;
  ops::CostFunction cost = nullptr;
  bool element_wise = false;
};

/// The operator of the name that a schema holds.
[[nodiscard]] const Operator& operator_of(const char* name);

/// Memory behind a tensor that is read or written once; expanded tensors have less than they show.
[[nodiscard]] double memory_of(const at::Tensor& tensor);
[[nodiscard]] double memory_of(Inputs inputs);

template <class Use>
void for_tensors(const c10::IValue& value, const Use& use) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) {
      use(value.toTensor());
    }
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      use(tensor);
    }
  }
}

/// The event of `aten::mm` and its like.
[[nodiscard]] PlanEvent product_event(const at::Tensor& a, const at::Tensor& b);

/// The event of QR or of eigenvectors: a GEMM of as many FLOPs, which no device's library is as fast
/// as.
[[nodiscard]] PlanEvent factors_event(std::string_view name, const at::Tensor& a);

/// The event of LibTorch's fused attention kernels.
[[nodiscard]] PlanEvent attention_event(std::string_view name, Inputs inputs);

/// The event of an operator of ours; a loss has its logits' number as `m`.
[[nodiscard]] PlanEvent own_event(std::string_view name, ops::CostFunction cost, Inputs inputs);

} // namespace mh
