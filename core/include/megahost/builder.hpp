#pragma once
/// What a model is built with: where parameters come from, and what the run's layout is.

#include "megahost/export.hpp"
#include "megahost/mesh.hpp"
#include "megahost/parameter.hpp"
#include "megahost/placement.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace mh {

/// Forward FLOPs per token of the global model, as layers report them while they are built. The
/// backward pass costs twice as much.
struct Flops {
  double products = 0;            ///< of matrix products with weights
  double attention_per_token = 0; ///< of attention, per token that a token attends to
};

class MH_API Builder {
public:
  struct Args {
    const Mesh* mesh = nullptr;
    const Rules* rules = nullptr;
    at::Device device = at::kCPU;
    at::ScalarType dtype = at::kFloat;
    uint64_t seed = 1234;
    int64_t seq = 0;            ///< global tokens per sample
    int64_t microbatch = 0;     ///< global samples of one microbatch, over all data ranks
    int64_t vocab_multiple = 1; ///< local vocabulary rows are padded to a multiple of this
    bool initialise = true;     ///< false where weights are loaded anyway
  };

  Builder(ParameterStore& store, const Args& args);

  [[nodiscard]] const Mesh& mesh() const { return *args_.mesh; }

  [[nodiscard]] const Rules& rules() const { return *args_.rules; }

  [[nodiscard]] at::TensorOptions options() const;

  [[nodiscard]] const Args& args() const { return args_; }

  /// {seq, batch, last} of an activation, and its placement.
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

  /// A parameter that another block already made (tied embeddings); name is global.
  /// Throws:  mh::Error if there is none
  [[nodiscard]] Parameter& shared(std::string_view name);

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

  /// The global name of `name` in the current scope.
  [[nodiscard]] std::string global_name(std::string_view name) const {
    return prefix_ + std::string(name);
  }

  Flops flops;

private:
  ParameterStore& store_;
  Args args_;
  std::string prefix_;
};

} // namespace mh
