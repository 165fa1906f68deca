// The recording of a graph: operators without views and writes, and only those that are needed.

#include "core/program/recorder.hpp"

#include "core/graph/loops.hpp"
#include "core/program/stablehlo/module.hpp"
#include "megahost/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/lgamma.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include <doctest/doctest.h>

#include <algorithm>

namespace {

using at::Tensor;
using mh::program::Graph;
using mh::program::GraphRecorder;

std::vector<std::string> ops_of(const Graph& graph) {
  std::vector<std::string> ops;
  for (const auto& node : graph.nodes) {
    ops.push_back(node.op);
  }
  return ops;
}

TEST_CASE("writes into views become values") {
  GraphRecorder recorder;
  Tensor x = recorder.input({4, 3}, at::kFloat);
  const Tensor flat = at::zeros({12}, x.options());
  flat.view({4, 3}).narrow(0, 1, 2).add_(x.narrow(0, 0, 2));
  x.mul_(2);
  const std::vector<int64_t> outputs{recorder.value_of(flat), recorder.value_of(x)};
  const Graph graph = with_needed_nodes(std::move(recorder).graph(), outputs);
  CHECK(graph.value(outputs[0]).sizes == std::vector<int64_t>{12});
  for (const auto& op : ops_of(graph)) {
    CHECK_MESSAGE(!op.ends_with("_"), op);
  }
  CHECK(graph.inputs.size() == 1);
  // Each value is made once, before it is read.
  std::vector<bool> made(graph.values.size());
  made[static_cast<size_t>(graph.inputs[0])] = true;
  for (const auto& node : graph.nodes) {
    for (const auto& values : node.inputs) {
      for (const int64_t value : values) {
        CHECK((value < 0 || made[static_cast<size_t>(value)]));
      }
    }
    for (const int64_t value : node.outputs) {
      CHECK((value < 0 || !made[static_cast<size_t>(value)]));
      made[static_cast<size_t>(value)] = true;
    }
  }
}

TEST_CASE("gradients are recorded, what is not needed is not kept") {
  GraphRecorder recorder;
  const Tensor x = recorder.input({5}, at::kFloat);
  Tensor y = x.detach().requires_grad_();
  (void)at::exp(x); // not needed
  at::sin(y * 3).sum().backward();
  const std::vector<int64_t> outputs{recorder.value_of(y.grad())};
  const auto ops = ops_of(with_needed_nodes(std::move(recorder).graph(), outputs));
  CHECK(std::count(ops.begin(), ops.end(), "aten::cos") == 1);
  CHECK(std::count(ops.begin(), ops.end(), "aten::exp") == 0);
}

TEST_CASE("what the host computes becomes a constant") {
  GraphRecorder recorder;
  const Tensor table = at::arange(3, at::kFloat) * 2;
  const Tensor y = recorder.input({3}, at::kFloat) + table.to(at::kMeta, /*non_blocking=*/false);
  const Tensor z = recorder.input({3}, at::kFloat) + at::scalar_tensor(7, at::kFloat);
  const std::vector<int64_t> outputs{recorder.value_of(y), recorder.value_of(z)};
  const Graph graph = with_needed_nodes(std::move(recorder).graph(), outputs);
  std::vector<Tensor> constants;
  for (const auto& node : graph.nodes) {
    if (node.op.empty()) {
      constants.push_back(node.constant);
    }
  }
  REQUIRE(constants.size() == 2);
  CHECK(at::equal(constants[0], table));
  CHECK(constants[1].item<float>() == 7);
}

TEST_CASE("a module names what it lacks, and is the same text each time") {
  const auto text = [] {
    GraphRecorder recorder;
    const Tensor x = recorder.input({2, 3}, at::kFloat);
    const Tensor y = at::softmax(x, -1).sum(0);
    const std::vector<int64_t> outputs{recorder.value_of(y)};
    return mh::program::stablehlo::module_text(
        with_needed_nodes(std::move(recorder).graph(), outputs), outputs, {.donated = {}}
    );
  };
  const std::string once = text();
  CHECK(once == text());
  CHECK(once.find("func.func public @main(") != std::string::npos);
  CHECK(once.find("tensor<2x3xf32>") != std::string::npos);

  GraphRecorder recorder;
  const Tensor x = recorder.input({4}, at::kFloat);
  const std::vector<int64_t> outputs{recorder.value_of(at::lgamma(x))};
  const Graph graph = with_needed_nodes(std::move(recorder).graph(), outputs);
  CHECK_THROWS_WITH_AS(
      (void)mh::program::stablehlo::module_text(graph, outputs, {}),
      "the step calls operators that no program can hold yet: aten::lgamma",
      mh::Error
  );
}

/// The loops of some layers forward, and back over what they saved; `widths`: of the weights of each.
std::string loops_of(const std::vector<int64_t>& widths) {
  GraphRecorder recorder;
  const Tensor sum = recorder.input({1}, at::kFloat);
  std::vector<Tensor> weights, saved;
  Tensor x = sum;
  for (size_t i = 0; i < widths.size(); ++i) {
    weights.push_back(recorder.input({widths[i]}, at::kFloat));
    saved.push_back(x);
    x = at::relu((x * weights[i]).sum() + at::scalar_tensor(static_cast<double>(i), at::kFloat));
  }
  Tensor slope = x;
  std::vector<int64_t> outputs;
  for (size_t i = widths.size(); i-- > 0;) {
    outputs.push_back(recorder.value_of(at::sin(slope * saved[i].sum())));
    slope = at::sin(slope * weights[i]).sum();
  }
  outputs.push_back(recorder.value_of(slope));
  const Graph graph = with_loops(with_needed_nodes(std::move(recorder).graph(), outputs), outputs);
  const std::string text = mh::program::stablehlo::module_text(graph, outputs, {});
  const std::string loops = loops_text(graph);
  CHECK((text.find("stablehlo.while") == std::string::npos) == loops.empty());
  return loops;
}

TEST_CASE("layers that are alike become loops, there and back") {
  CHECK(loops_of({3, 3, 3, 3, 3}) == "4 x 4, 4 x 6"); // the first layer reads another shape
  CHECK(loops_of({2, 3, 3, 3, 3, 4}) == "4 x 4, 4 x 6");
  CHECK(loops_of({3, 4, 5, 6}).empty());
  CHECK(loops_of({3, 3}).empty());
}

TEST_CASE("operators of threads that do not record run as ever") {
  const Tensor before = at::relu(at::arange(-2, 3, at::kFloat));
  { const GraphRecorder recorder; }
  CHECK(at::equal(at::relu(at::arange(-2, 3, at::kFloat)), before));
}

} // namespace
