#pragma once
/// Records what a thread does with tensors of the Meta device, below autograd and functionalization:
/// forward and backward passes and updates in place become a graph of ATen operators.
///
/// ```cpp
/// mh::program::GraphRecorder recorder;
/// at::Tensor x = recorder.input({4, 8}, at::kFloat);
/// at::Tensor y = at::relu(x).add_(1);
/// int64_t result = recorder.value_of(y);
/// mh::program::Graph graph = std::move(recorder).graph();
/// ```

#include "core/graph/graph.hpp"
#include "core/program/dropout.hpp"

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace mh::program {

/// While it lives, the operators that its thread calls on Meta tensors are recorded; one at a time.
/// Operators of ours are recorded as those that their plain forms call, and operators of LibTorch
/// that have a simpler form as that form. Operations on host tensors run, and become constants if
/// their results meet Meta tensors.
class GraphRecorder {
public:
  GraphRecorder();
  ~GraphRecorder();
  GraphRecorder(const GraphRecorder&) = delete;
  GraphRecorder& operator=(const GraphRecorder&) = delete;

  /// A tensor that is given to the program when it runs.
  [[nodiscard]] at::Tensor input(at::IntArrayRef sizes, at::ScalarType dtype);

  /// The value that a tensor has now, after all writes into it.
  [[nodiscard]] int64_t value_of(const at::Tensor& tensor);

  /// Says where the numbers of dropout come from, when the first one is asked for; without, dropout
  /// is refused.
  void set_dropout(std::function<DropoutNumbers()> make) { make_dropout_ = std::move(make); }

  /// Operators and constants so far.
  [[nodiscard]] size_t nodes() const { return graph_.nodes.size(); }

  /// The graph that was recorded.
  [[nodiscard]] Graph graph() && { return std::move(graph_); }

private:
  friend void record(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack*);
  friend at::Tensor recorded_dropout(
      const at::Tensor&, double, int64_t, const at::Tensor&, const at::Tensor&, int64_t
  );
  void call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack);
  /// Gives a tensor that an operator has made a number of its own.
  int64_t new_value(const at::Tensor& tensor);
  /// The number of a tensor that an operator reads; one in host memory becomes a constant.
  int64_t known_value(const at::Tensor& tensor);

  c10::impl::IncludeDispatchKeyGuard include_;
  at::functionalization::impl::FunctionalizationReapplyViewsGuard views_; // views keep their names
  Graph graph_;
  std::unordered_map<const c10::TensorImpl*, int64_t> numbers_;
  std::function<DropoutNumbers()> make_dropout_;
  std::optional<DropoutNumbers> dropout_;
  std::vector<at::Tensor> alive_; // so that no address comes back
};

} // namespace mh::program
