#pragma once
/// Master weights and optimizer state: what an update changes and a checkpoint keeps.

#include "megahost/optimizer.hpp"
#include "megahost/parameter.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace mh {

/// float32 weights, gradients and optimizer state of every piece of a model.
///
/// In float32 (and float64) training the parameters are their own masters; in bf16 the masters are
/// copies from which the parameters are rounded after each update. Keeps references to the store.
class Weights {
public:
  /// Makes masters of the parameters' present values, and zero state. The store's gradients must
  /// have been allocated.
  Weights(ParameterStore& store, const Optimizer& optimizer, double weight_decay);

  /// One optimizer step over all pieces, then the parameters take their new values.
  void update(const Optimizer& optimizer, const Update& update);

  /// Parameters take the masters' values; call after the masters were loaded.
  void publish();

  /// A tensor that a checkpoint holds. Data are views: loading writes into them.
  struct Stored {
    std::string
        name; ///< "layers.0.attention.q.weight", "optimizer.exp_avg.layers.0.attention.q.weight"
    const Piece* piece;
    at::Tensor data;
  };

  [[nodiscard]] std::vector<Stored> stored() const;

  /// Whether every master weight is a finite number.
  [[nodiscard]] bool finite() const;

  /// Bytes beside the parameters: masters where they are copies, and state.
  [[nodiscard]] int64_t bytes() const;

private:
  ParameterStore& store_;
  std::vector<StateSpec> state_;
  std::vector<at::Tensor> masters_; // one per leaf
  std::vector<UpdateItem> items_;   // one per piece, in the store's order
  std::vector<const Piece*> pieces_;
  bool copies_ = false;
};

} // namespace mh
