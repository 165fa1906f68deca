#pragma once
/// The modules of a recording, one after the other, with their inputs and outputs by name.

#include "core/program/recorder.hpp"
#include "core/program/step_recorder.hpp"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace mh::program {

class ModuleRecorder {
public:
  /// The recorder outlives it.
  explicit ModuleRecorder(GraphRecorder& recorder)
      : recorder_(recorder) {}

  /// Begins a module of this name; if there is one, "NAME.1" and so on.
  void begin(const std::string& name, bool per_microbatch = false);

  /// A tensor that is given to the module that was begun last.
  [[nodiscard]] at::Tensor input(
      const std::string& name,
      const at::Tensor& like,
      const std::optional<StageResult>& from = std::nullopt
  );

  /// A tensor that is given to no module: what is computed from it can be a part of none.
  [[nodiscard]] at::Tensor nobodys(const at::Tensor& like) {
    return recorder_.input(like.sizes(), like.scalar_type());
  }

  /// A result of the module that was begun last.
  void output(const std::string& name, const at::Tensor& value);

  [[nodiscard]] std::vector<RecordedModule>& all() { return modules_; }

  [[nodiscard]] Module& last() { return modules_.back().module; }

private:
  GraphRecorder& recorder_;
  std::vector<RecordedModule> modules_;
};

} // namespace mh::program
