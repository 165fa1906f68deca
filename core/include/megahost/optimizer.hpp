#pragma once
/// Optimizers: state per parameter and one update over a list of tensors.

#include "megahost/export.hpp"
#include "megahost/kind.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace mh {

/// One state tensor of each parameter, of the parameter's shape ("exp_avg"; saved as
/// `optimizer.exp_avg.<parameter>`).
struct StateSpec {
  std::string name;
  at::ScalarType dtype = at::kFloat;
};

/// What an update may cut a parameter into: single elements, or whole matrices (Muon).
enum class Unit : uint8_t { element, matrix };

/// One parameter as the optimizer sees it.
struct UpdateItem {
  std::string name;              ///< global name of the piece
  at::Tensor weight;             ///< float32 master weight, updated in place
  at::Tensor gradient;           ///< float32, not yet scaled
  std::vector<at::Tensor> state; ///< in the order of `state()`
  double lr_multiplier = 1;
  double weight_decay = 0; ///< 0 for norms and biases
};

/// One optimizer step.
struct Update {
  int64_t step = 1; ///< number of this update, from 1
  double lr = 0;
  double gradient_scale = 1; ///< multiply gradients by this (clipping, loss scale)
};

class MH_API Optimizer {
public:
  static constexpr Kind kKind = Kind::optimizer;

  struct Args {};

  virtual ~Optimizer();

  [[nodiscard]] virtual std::vector<StateSpec> state() const = 0;

  [[nodiscard]] virtual Unit unit() const { return Unit::element; }

  virtual void update(std::span<UpdateItem> items, const Update& update) const = 0;
};

} // namespace mh
