#pragma once
/// Master weights and optimizer state: what an update changes and a checkpoint keeps.

#include "megahost/export.hpp"
#include "megahost/gradients.hpp"
#include "megahost/mesh.hpp"
#include "megahost/optimizer.hpp"
#include "megahost/parameter.hpp"
#include "megahost/recipe.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace mh {

struct WeightOptions {
  double weight_decay = 0;
  bool decay_vectors = false; ///< norms and biases too
  bool masters = true;        ///< float32 copies of weights in 16 bits
  bool offload = false;       ///< masters and state in host memory, where the device is another
  std::vector<Recipe::ParameterGroup> groups{};
  const Mesh* mesh = nullptr; ///< for optimizers that need whole matrices of split weights

  /// Only this one of `count` equal ranges of each piece's rows is updated and has masters and state;
  /// of pieces whose rows do not divide by it, all.
  struct Rows {
    int64_t index = 0, count = 1;
  } rows{};
};

/// The recipe's options for weights and state.
[[nodiscard]] MH_API WeightOptions weight_options(const Recipe& recipe, const Mesh& mesh);

/// float32 weights, gradients and optimizer state of what this rank updates: every piece of a model
/// that is trained, or its part of them under `zero`.
///
/// In float32 (and float64) training the parameters are their own masters; in bf16 the masters are
/// copies from which the parameters are rounded after each update. Masters are copies, too, where
/// the optimizer keeps other weights than training computes with. Keeps references to the store and
/// to the optimizer.
class MH_API Weights {
public:
  /// Makes masters of the present values of what this rank updates, and zero state. Parameters,
  /// their gradients and the optimizer outlive the object.
  Weights(
      const Gradients& gradients, const Optimizer& optimizer, const WeightOptions& options = {}
  );

  Weights(const Weights&) = delete; ///< a copy's tensors would be the same ones
  Weights& operator=(const Weights&) = delete;

  /// One optimizer step over all pieces; then the parameters have their new values, and the
  /// gradients are zero. Numbers that are tensors are read before, where the optimizer takes none
  /// or the weights are offloaded.
  void update(const Optimizer& optimizer, const Update& update);

  /// Weight decay of the updates to come.
  void set_weight_decay(Number weight_decay) { weight_decay_ = std::move(weight_decay); }

  [[nodiscard]] const Number& weight_decay() const { return weight_decay_; }

  /// Parameters take the values that training computes with; call after masters and state were
  /// loaded, and after `publish_masters`.
  void publish();

  /// Parameters take the masters' values, for evaluation and samples.
  void publish_masters();

  /// A tensor that a checkpoint holds. Data are views: loading writes into them.
  struct Stored {
    std::string
        name; ///< "layers.0.attention.q.weight", "optimizer.exp_avg.layers.0.attention.q.weight"
    const Piece* piece; ///< a state of its own shape has a piece of that shape, whole or empty
    at::Tensor data;
  };

  [[nodiscard]] const std::vector<Stored>& stored() const { return stored_; }

  /// The pieces that are updated.
  [[nodiscard]] const std::vector<OwnedPiece>& owned() const { return owned_; }

  /// Whether every master weight is a finite number.
  [[nodiscard]] bool finite() const;

  /// Bytes of the device's memory in addition to the parameters: masters if they are copies, and
  /// state; 0 if they are offloaded.
  [[nodiscard]] int64_t bytes() const { return offload_ ? 0 : held_bytes_; }

  [[nodiscard]] int64_t host_bytes() const { return offload_ ? held_bytes_ : 0; }

private:
  /// A piece's tensors where the optimizer works: views of the model's own, or on the host.
  struct Held {
    at::Tensor master;
    at::Tensor gradient;
    at::Tensor rounded; ///< output of the update; undefined if the master is the parameter
  };

  [[nodiscard]] Held hold(const OwnedPiece& owned);
  void add(const OwnedPiece& owned);
  [[nodiscard]] bool holds_states(const Piece& piece, int64_t elements);
  void add_state(const Piece& piece, const StateSpec& spec, bool here, UpdateItem& item);
  [[nodiscard]] at::Tensor
  zeros(const std::vector<int64_t>& shape, at::ScalarType dtype, const at::Tensor& weight) const;
  void copy_to_device();

  const Optimizer& optimizer_;
  WeightOptions options_;
  Number weight_decay_;
  bool offload_ = false;
  int64_t held_bytes_ = 0;
  std::vector<OwnedPiece> owned_;
  std::vector<Held> held_;                                  // one per owned piece
  std::vector<UpdateItem> items_;                           // one per owned piece
  std::map<std::string, std::vector<int64_t>> states_held_; // elements of each rank, by mesh axes
  std::vector<double> decays_;                              // factors of the items' weight decay
  std::vector<at::Tensor> unused_gradients_; // those of frozen pieces that share a leaf with others
  std::deque<Piece> state_pieces_;           // states that have a shape of their own
  std::vector<Stored> stored_;
};

} // namespace mh
