#pragma once
/// Parameters: what a layer asks for, what it gets, and what the trainer, the checkpoint and the
/// optimizer know of it.
///
/// A leaf tensor may pack several named pieces along its rows (query, key and value weights share
/// one GEMM). Names, shapes, initial values, gradient sums and checkpoints belong to pieces.

#include "megahost/axis.hpp"
#include "megahost/export.hpp"
#include "megahost/mesh.hpp"
#include "megahost/placement.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mh {

/// Initial values. Each is a function of the run's seed, the parameter's name and the element's
/// index in the global tensor, so that every layout begins with the same model:
///
/// ```cpp
/// const mh::Init inits[] = {
///     mh::Init::normal(0.02),
///     mh::Init::log_uniform(1e-3, 0.1).mapped([](double dt) { return std::log(std::expm1(dt)); }),
///     mh::Init::of_index([](std::span<const int64_t> i) { return std::log(1.0 + i[1]); }),
/// };
/// ```
///
/// A layer's constructor never writes into a value itself: under ZeRO-3 values are made later, and
/// only in part.
class MH_API Init {
public:
  /// The value of an element, whose index has one number per dimension of the global tensor.
  using OfIndex = std::function<double(std::span<const int64_t> index)>;

  Init() = default; ///< zeros

  [[nodiscard]] static Init zeros() { return {}; }

  [[nodiscard]] static Init ones() { return constant(1); }

  [[nodiscard]] static Init constant(double value);

  /// Mean 0.
  [[nodiscard]] static Init normal(double std);

  /// Uniform in [low, high).
  [[nodiscard]] static Init uniform(double low, double high);

  /// Logarithms are uniform: as many values between 0.001 and 0.01 as between 0.01 and 0.1.
  [[nodiscard]] static Init log_uniform(double low, double high);

  [[nodiscard]] static Init of_index(OfIndex value);

  /// This one's values after `map`.
  [[nodiscard]] Init mapped(std::function<double(double)> map) const;

  /// Writes a slice of the global tensor.
  ///
  /// Shapes:  zeros [n0, n1, ...] at `offset` of a tensor of `global_shape`
  /// Dtype:   any float; values are made in float64, those of `normal` from float32
  /// key      of the seed and the parameter's name, see random_key
  void fill(
      const at::Tensor& zeros,
      uint64_t key,
      const std::vector<int64_t>& global_shape,
      const std::vector<int64_t>& offset
  ) const;

private:
  /// Values `ret_values` of a row, whose first has the row-major index `first` in the tensor.
  using WriteRow = std::function<void(
      uint64_t key,
      const std::vector<int64_t>& global_shape,
      int64_t first,
      std::span<double> ret_values
  )>;

  explicit Init(WriteRow write)
      : write_(std::move(write)) {}

  WriteRow write_; ///< empty: zeros
};

/// One named piece as a layer asks for it.
struct ParamSpec {
  std::string name; ///< relative to the builder's scope: "weight"
  Dims dims;        ///< global, true sizes (vocabulary without padding)
  Init init;
};

/// A group of ranks along a mesh axis: gradients are summed over its members, or they hold the same
/// slice.
struct GradientSum {
  MeshAxis axis;
  int64_t inner = 0; ///< 0: the whole axis, else blocks of this many neighbours
  friend bool operator==(const GradientSum&, const GradientSum&) = default;
};

/// A tensor is split along this mesh axis.
struct Shards {
  MeshAxis axis;
  int64_t inner = 1; ///< neighbours along the axis that hold the same slice
};

/// One named piece as this rank holds it.
struct Piece {
  std::string name;                  ///< global: "layers.3.attention.q.weight"
  std::vector<int64_t> global_shape; ///< shape of the whole tensor
  std::vector<int64_t> offset;       ///< first element of the local shard in it
  std::vector<int64_t> shape;        ///< shape of the local shard, without padding
  int64_t row = 0;                   ///< first row of the slice along dimension 0 of the leaf
  std::vector<int64_t> inside{}; ///< and along the others; empty: at 0 (all but parts of pieces)
  std::vector<GradientSum> sums; ///< gradient reductions it needs
  std::vector<GradientSum> same; ///< groups whose members hold the same slice
  std::vector<int64_t> stages{}; ///< pipeline stages that share it; empty: only this one has it
  std::vector<Shards> shards;    ///< mesh axes that split it
  int64_t copies = 1;            ///< ranks that hold the same slice: each element counts once
  bool frozen = false;           ///< not trained: in no gradient sum and no norm
};

struct Parameter;

/// Is told what passes need and make, so that values come from other ranks just before their use,
/// and sums over ranks start before a backward pass ends.
class MH_API ParameterListener {
public:
  virtual ~ParameterListener();
  /// A block is about to run: the values of its parameters must be there when this returns.
  ///
  /// Returns: whether they may be gone by the time of its backward pass, which then asks again
  virtual bool needed(const std::vector<Parameter*>& parameters) = 0;
  /// `main_grad` is about to grow: it must be allocated when this returns.
  virtual void before(Parameter& parameter) = 0;
  /// One use of the parameter has added its gradient.
  virtual void added(Parameter& parameter) = 0;
};

/// A leaf tensor and its gradient.
struct Parameter {
  at::Tensor value; ///< [rows, ...] in the training dtype, requires grad
  at::Tensor
      main_grad; ///< float32 (float64 models: float64) of the same shape, accumulated in place
  std::vector<Piece> pieces;
  int64_t block = 0;                     ///< this rank's block that made it, counted from 0
  ParameterListener* listener = nullptr; ///< told of this parameter's gradients; null: none is

  /// For layers that add weight gradients themselves; `add` gets `main_grad`. Nothing happens where
  /// the parameter is frozen.
  ///
  /// Throws:  InternalError if it has no `main_grad` (gradients.hpp)
  MH_API void add_gradient(const std::function<void(const at::Tensor& main_grad)>& add);

  /// The part of `tensor` (value, main_grad, or a tensor of the same shape) that is the piece,
  /// unpadded.
  [[nodiscard]] MH_API at::Tensor view(const at::Tensor& tensor, const Piece& piece) const;
};

/// A tensor of a layer that is no parameter but decides numbers (FP8 scales): each rank that has
/// the layer holds it whole, and checkpoints keep it.
struct Buffer {
  Piece piece;
  at::Tensor value;
};

/// All parameters of a model on this rank. References stay valid.
class MH_API ParameterStore {
public:
  ParameterStore() = default;
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;
  ParameterStore(ParameterStore&&) = default;

  Parameter& add(Parameter parameter);

  /// `name` is global.
  void add_buffer(const std::string& name, at::Tensor value);

  [[nodiscard]] const std::deque<Buffer>& buffers() const { return buffers_; }

  [[nodiscard]] std::deque<Parameter>& all() { return parameters_; }

  [[nodiscard]] const std::deque<Parameter>& all() const { return parameters_; }

  /// The leaf that holds a piece of this name, or nullptr.
  [[nodiscard]] Parameter* find(std::string_view piece);

  /// Elements of the global tensors of this pipeline stage, each counted once however it is laid
  /// out (tied weights once).
  [[nodiscard]] int64_t global_elements() const;

  /// Gives one parameter a gradient in a buffer of the caller's: `main_grad` becomes the part of
  /// `flat` (one dimension) that starts at `begin`. An undefined `flat` takes the gradient away.
  static void place_gradient(Parameter& parameter, const at::Tensor& flat, int64_t begin);

  /// Tells `listener` of every use and every gradient from now on, those that autograd adds
  /// included.
  void listen(ParameterListener* listener);

private:
  std::deque<Parameter> parameters_;
  std::deque<Buffer> buffers_;
};

} // namespace mh
