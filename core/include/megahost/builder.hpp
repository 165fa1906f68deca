#pragma once
/// The builder of a model's parameters: where they come from, and what the run's layout is.

#include "megahost/export.hpp"
#include "megahost/mesh.hpp"
#include "megahost/parameter.hpp"
#include "megahost/placement.hpp"
#include "megahost/sequence.hpp"
#include "megahost/step_state.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mh {

/// Forward FLOPs of one sample in the global model, as layers report them while they are built:
/// each knows how many tokens it works on, and which pairs of them see each other. The backward
/// pass costs twice as much.
struct Flops {
  double gemms = 0; ///< GEMMs with weights
  double attention = 0;

  [[nodiscard]] double total() const { return gemms + attention; }
};

/// Consecutive blocks of a model: what one pass of a pipeline stage runs.
struct ModelChunk {
  int64_t first = 0;      ///< its first layer
  int64_t layers = 0;     ///< how many it has
  bool embedding = false; ///< the embedding comes before them
  bool head = false;      ///< the head comes after them
  friend bool operator==(const ModelChunk&, const ModelChunk&) = default;
};

class DeferredValues;
class Fp8State;

/// How GEMMs in FP8 find the scales of their operands.
///
/// Source:  arXiv:2209.05433; delayed and current scaling as in Transformer Engine
struct Fp8Spec {
  bool delayed = true;      ///< from the largest values of the steps before; else from the tensor
  int64_t history = 1024;   ///< steps
  bool most_recent = false; ///< only the history's last step counts
  int64_t margin = 0;       ///< scales are smaller by 2^margin
};

class MH_API Builder {
public:
  struct Args {
    const Mesh* mesh = nullptr;
    const Rules* rules = nullptr;
    at::Device device = at::kCPU;
    at::ScalarType dtype = at::kFloat;
    uint64_t seed = 1234;
    int64_t seq = 0;              ///< global tokens per sample
    int64_t microbatch = 0;       ///< global samples of one microbatch, over all data ranks
    int64_t vocab_multiple = 1;   ///< local vocabulary rows are padded to a multiple of this
    bool initialise = true;       ///< false where weights are loaded anyway
    std::optional<Fp8Spec> fp8{}; ///< linear layers multiply in FP8, unless their spec says no
    /// Chunks of the whole pipeline: chunk c lies on stage c % pp, as chunk c / pp of that. Empty:
    /// one chunk, the whole model.
    std::vector<ModelChunk> chunks{};
    Sequences sequences{}; ///< a model sets what its architecture says
  };

  Builder(ParameterStore& store, const Args& args);

  [[nodiscard]] const Mesh& mesh() const { return *args_.mesh; }

  [[nodiscard]] const Rules& rules() const { return *args_.rules; }

  [[nodiscard]] at::TensorOptions options() const;

  [[nodiscard]] const Args& args() const { return args_; }

  /// Scales of the GEMMs in FP8; null in other precisions.
  [[nodiscard]] const std::shared_ptr<Fp8State>& fp8() const { return fp8_; }

  /// Layers that are built while the value lives work on the tokens of another sequence; "": on the
  /// sample's own.
  ///
  /// Throws:  InternalError if the architecture has no such sequence
  [[nodiscard]] SequenceScope within(std::string_view sequence);

  /// Tokens per sample of the current sequence.
  [[nodiscard]] int64_t seq() const;

  /// {seq, batch, last} of an activation of the current sequence, and its placement.
  [[nodiscard]] Dims dims(Axis last) const;
  [[nodiscard]] Placement place(Axis last, Tier upto = Tier::between) const;

  /// A vocabulary axis padded for this run's layout; any other axis as it is.
  [[nodiscard]] Axis padded(Axis axis) const;

  /// A parameter of one or more pieces packed along dimension 0, with its final shape and initial
  /// values.
  ///
  /// `seen` is the placement of the activation that the parameter meets: gradients are summed over
  /// every mesh axis on which the parameter is not split and that activation is not identical.
  Parameter& parameter(const std::vector<ParamSpec>& specs, const Placement& seen);

  /// A parameter that a block before this one made (tied embeddings); name is global. If that block
  /// lies on another pipeline stage, this stage has a copy: their gradients are summed, and it
  /// counts as one parameter.
  ///
  /// Throws:  mh::Error if there is none
  [[nodiscard]] Parameter& shared(std::string_view name);

  /// A tensor that decides numbers but is no parameter: each rank that has the layer holds it
  /// whole, and checkpoints keep it.
  void buffer(std::string_view name, at::Tensor value) {
    store_.add_buffer(global_name(name), std::move(value));
  }

  /// Something that gathers over a step and changes at its end (FP8's scales, routers' biases).
  void at_step_end(std::shared_ptr<StepState> state) { step_states_.push_back(std::move(state)); }

  [[nodiscard]] const std::vector<std::shared_ptr<StepState>>& step_states() const {
    return step_states_;
  }

  /// Initial values come from `ParamSpec::init` alone: under ZeRO-3 they are made later, and only
  /// in part.
  ///
  /// Throws:  mh::Error if something has written into the value of a parameter made here, or keeps a
  ///          view of one that is made later
  void refuse_written_values() const;

  /// Makes the values that were put off while a block was made.
  void make_values(DeferredValues& deferred);

  /// The names that `shared` was asked for.
  [[nodiscard]] const std::vector<std::string>& shared_names() const { return shared_names_; }

  /// Names made while the scope lives start with `name` and a dot.
  class MH_API Scope {
  public:
    Scope(Builder& builder, std::string_view name);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

  private:
    Builder& builder_;
    size_t length_;
  };

  [[nodiscard]] Scope scope(std::string_view name) { return Scope(*this, name); }

  /// Runs `make`, whose names start with `name` and a dot, and returns its result.
  template <class Make>
  auto below(std::string_view name, const Make& make) {
    const Scope names(*this, name);
    return make();
  }

  /// The global name of `name` in the current scope.
  [[nodiscard]] std::string global_name(std::string_view name) const {
    return prefix_ + std::string(name);
  }

  Flops flops;

private:
  /// A value as `parameter` made it.
  struct Made {
    const Parameter* parameter;
    int64_t version;
    at::Tensor memory; ///< the memory of a value that is made later
  };

  ParameterStore& store_;
  Args args_;
  std::shared_ptr<Fp8State> fp8_;
  std::string prefix_;
  std::string sequence_;
  std::vector<Made> made_;
  std::vector<std::string> shared_names_;
  std::vector<std::shared_ptr<StepState>> step_states_;
};

} // namespace mh
