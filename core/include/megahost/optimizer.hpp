#pragma once
/// Optimizers: state per parameter and one update over a list of tensors.

#include "megahost/export.hpp"
#include "megahost/kind.hpp"
#include "megahost/number.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace mh {

/// One state tensor of each parameter ("exp_avg"; saved as `optimizer.exp_avg.<parameter>`). It is
/// zero before the first update.
struct StateSpec {
  std::string name;
  at::ScalarType dtype = at::kFloat; ///< kFloat is float64 where the weights are (`megahost check`)
  /// {}: the parameter's shape, sharded as the parameter is. Else a shape of its own (Adafactor's
  /// row and column means): each rank that holds a slice of the parameter holds this state whole.
  std::vector<int64_t> shape = {};
  /// For a state of a shape of its own (Shampoo's factors): one of the ranks that split the parameter
  /// holds it whole, the others hold no element of it. All such states of a parameter are on the same
  /// rank, and ranks are chosen so that each holds about as much.
  bool on_one_rank = false;
};

/// The unit that an update may cut a parameter into: single elements, or whole matrices (Muon).
enum class Unit : uint8_t { element, matrix };

/// One parameter as the optimizer sees it: all of a tensor, or the slice of it that this rank
/// holds. In float64 models (`megahost check`) float64 stands for float32.
struct UpdateItem {
  std::string name;              ///< global name of the piece
  at::Tensor weight;             ///< float32 master weight, updated in place
  at::Tensor gradient;           ///< float32, not yet scaled
  std::vector<at::Tensor> state; ///< tensors in the order of `state_of()`
  double lr_multiplier = 1;
  Number weight_decay = 0;                ///< this step's; 0 for norms and biases
  at::Tensor parameter = {};              ///< the model's copy, if it is rounded from `weight`
  std::vector<int64_t> global_shape = {}; ///< shape that `weight` is a slice of; {}: all of it
  std::vector<int64_t> offset = {};       ///< first element of the slice in it
  /// The global tensor from each rank's tensor like `weight`; null where this rank holds it all.
  /// Ranks: collective over the mesh axes that split the tensor
  std::function<at::Tensor(const at::Tensor&)> gather = nullptr;
  /// The sum of each rank's tensor, any shape, over the slices of the global tensor, each counted
  /// once however many ranks hold it; null where this rank holds it all.
  /// Ranks: as `gather`
  std::function<at::Tensor(const at::Tensor&)> sum = nullptr;
};

/// Whether an optimizer of whole matrices (Muon, SOAP) updates a parameter as one: it has two
/// dimensions, is no stack of experts' biases, and no pattern of `others` matches its name, in which
/// `*` stands for any characters.
[[nodiscard]] MH_API bool
is_matrix(const std::string& name, size_t dims, const std::vector<std::string>& others);

/// The item's slice of a tensor of the global shape; a view.
[[nodiscard]] MH_API at::Tensor slice_of(const UpdateItem& item, const at::Tensor& whole);

/// One optimizer step. Its numbers are on the host, but for optimizers that take tensors.
struct Update {
  Number step = 1; ///< number of this update, from 1
  Number lr = 0;
  Number gradient_scale = 1; ///< multiply gradients by this (clipping, loss scale)
  uint64_t seed = 0;         ///< the run's, for stochastic rounding
};

class MH_API Optimizer {
public:
  static constexpr Kind kKind = Kind::optimizer;

  struct Args {
    at::ScalarType state_dtype = at::kFloat; ///< the recipe's `optimizer.state_dtype`
    bool stochastic_rounding = false;        ///< the recipe's; of bf16 state and weights
  };

  virtual ~Optimizer();

  [[nodiscard]] virtual std::vector<StateSpec> state() const = 0;

  /// The state of one parameter, where not all have the same (Muon: matrices have less).
  [[nodiscard]] virtual std::vector<StateSpec>
  state_of(const std::string& name, const std::vector<int64_t>& global_shape) const;

  [[nodiscard]] virtual Unit unit() const { return Unit::element; }

  /// Whether `update` also sets each item's `parameter` to the rounded weight and each gradient to
  /// zero, as `update_fused` does; else both are done after it.
  [[nodiscard]] virtual bool finishes() const { return false; }

  /// Whether `update` rounds as `Args::stochastic_rounding` asks. A recipe that asks it of one that
  /// does not is refused.
  [[nodiscard]] virtual bool rounds_stochastically() const { return false; }

  /// Whether `update` takes numbers that are tensors (Number::is_tensor), as `update_fused` does,
  /// and never asks for one on the host. If it does not, the core reads them before the call: the
  /// host waits for the device, and a step with this optimizer cannot be recorded.
  [[nodiscard]] virtual bool takes_tensors() const { return false; }

  virtual void update(std::span<UpdateItem> items, const Update& update) const = 0;

  /// Whether the weights that are kept are others than those that training computes with (a running
  /// average of them, as in schedule-free training). Checkpoints, evaluation, samples and exports
  /// then have each item's `weight`, which is never the model's own tensor; training computes with
  /// its `parameter`, which is always defined, and which `update` and `set_parameters` set.
  [[nodiscard]] virtual bool keeps_other_weights() const { return false; }

  /// Sets each item's `parameter` as the last update did, from `weight` and state: after a
  /// checkpoint was loaded, and after an evaluation. Sets it to the rounded weight if not overridden.
  virtual void set_parameters(std::span<UpdateItem> items) const;
};

/// The formulas of one pass over all elements, with g the scaled gradient, lr and decay the item's:
///
///   adam     m += (1 - beta1)(g - m);  v += (1 - beta2)(g^2 - v)
///            w -= lr m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + eps)
///   sgd      m = beta1 m + g;  w -= lr m, or with Nesterov  w -= lr (g + beta1 m)
///   average  m += (1 - beta1)(g - m);  gradient = m, or with Nesterov  g + beta1 (m - g);
///            the weight stays as it is
///
/// Decay: decoupled  w -= lr decay w  before the rest, else  g += decay w.  A beta1 of 0 in sgd
/// needs no state.
///
/// Source:  arXiv:1412.6980 and arXiv:1711.05101 (adam), in the form of torch.optim; the same for
///          torch.optim.SGD, and torch.optim.Muon's momentum (average)
struct UpdateRule {
  enum class Kind : uint8_t { adam, sgd, average };

  Kind kind = Kind::adam;
  bool decoupled = true;
  bool nesterov = false;
  bool stochastic_rounding = false; ///< rounds bf16 state and weights at random; else to nearest
  double beta1 = 0, beta2 = 0, eps = 0;
};

/// One pass over the elements of all items on all cores: reads gradient, weight and state; writes
/// weight, state and `parameter`, and sets the gradient to zero (`average` keeps its result there).
/// Numbers that are tensors are read by the kernels, from the items' device or from host memory.
///
/// Dtype:   weight float32, bf16 or float64; state float32 or bf16 (float64 with float64 weights)
/// Ranks:   local; the result of an element does not depend on the layout
MH_API void update_fused(const UpdateRule& rule, std::span<UpdateItem> items, const Update& update);

} // namespace mh
