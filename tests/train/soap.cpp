// Shampoo and SOAP: figures of their formulas, what they keep where, and when they refresh.

#include "core/mesh/threads.hpp"
#include "core/step/weights.hpp"
#include "megahost/builder.hpp"
#include "megahost/gradients.hpp"
#include "megahost/optimizer.hpp"
#include "megahost/parameter.hpp"
#include "runs.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_eigh.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <doctest/doctest.h>

#include <mutex>

using mh::Table;
using mh::Value;

namespace {

constexpr const char* kName = "layers.0.mlp.up.weight";

/// A matrix with its state, in float64.
mh::UpdateItem
start_of(const mh::Optimizer& optimizer, const std::vector<int64_t>& shape, const char* name) {
  mh::UpdateItem item;
  item.name = name;
  item.weight = (at::arange(shape[0] * shape[1], at::kDouble) * 0.9).cos().view(shape);
  for (const auto& spec : optimizer.state_of(name, shape)) {
    item.state.push_back(at::zeros(spec.shape.empty() ? shape : spec.shape, at::kDouble));
  }
  return item;
}

at::Tensor sine_gradient(const mh::UpdateItem& item, int64_t step) {
  const at::Tensor k = at::arange(item.weight.numel(), at::kDouble);
  return ((k + 1) * (k + static_cast<double>(step)) * 0.37).sin().view(item.weight.sizes());
}

void update(const mh::Optimizer& optimizer, mh::UpdateItem& item, int64_t step, double lr = 0.02) {
  item.gradient = sine_gradient(item, step) * 4; // the scale takes it away
  optimizer.update({&item, 1}, {.step = step, .lr = lr, .gradient_scale = 0.25});
}

/// Names of the states with their shapes: "left [4, 4]".
std::vector<std::string>
states(const mh::Optimizer& optimizer, const std::string& name, const std::vector<int64_t>& shape) {
  std::vector<std::string> all;
  for (const auto& spec : optimizer.state_of(name, shape)) {
    std::string words = spec.name;
    for (const int64_t size : spec.shape) {
      words += " " + std::to_string(size);
    }
    all.push_back(words);
  }
  return all;
}

} // namespace

// The figures are those of soap_figures.py after four steps: the sum of w[i] (i + 1), and the last
// weight.
TEST_CASE("Shampoo and SOAP have the figures of their formulas") {
  struct Case {
    std::string name;
    Table options;
    std::vector<int64_t> shape;
    double sum, last;
  };

  const Table both{
      {"betas", Value::Array{0.9, 0.8}},
      {"shampoo_beta", 0.7},
      {"eps", 1e-3},
      {"precondition_frequency", 1}};
  const Table one{{"max_preconditioner_dim", 4}, {"precondition_frequency", 1}};
  const auto with = [](Table table, const std::string& key, const Value& value) {
    table.set(key, value);
    return table;
  };
  const Case cases[] = {
      {"soap", with(both, "damping", 0.0), {3, 4}, -13.823551528327798, -0.906315445233526},
      {"soap",
       with(with(one, "damping", 0.0), "normalise", true),
       {3, 6},
       -6.6568747336793646,
       -1.0167001276596004},
      {"shampoo", with(both, "damping", 0.1), {3, 4}, -12.410396525012555, -0.8993137594244863},
      {"shampoo", one, {3, 6}, -6.597230500583128, -1.0165815070874982}};
  auto host = runs::host();
  for (const auto& [name, options, shape, sum, last] : cases) {
    CAPTURE(name);
    CAPTURE(shape.back());
    const auto optimizer = host.make<mh::Optimizer>(name, options);
    auto item = start_of(*optimizer, shape, kName);
    const at::Tensor start = item.weight.clone();
    for (int64_t step = 1; step <= 4; ++step) {
      update(*optimizer, item, step);
      if (name == "soap" && step == 1) { // the reference's beginning
        CHECK(at::equal(item.weight, start));
        for (size_t factor = 2; factor < item.state.size(); factor += 2) {
          const auto vectors = std::get<1>(at::linalg_eigh(item.state[factor]));
          item.state[factor + 1].copy_(vectors.flip({1}));
        }
      }
    }
    const at::Tensor w = item.weight.flatten();
    const at::Tensor places = at::arange(1, w.numel() + 1, at::kDouble);
    CHECK((w * places).sum().item<double>() == doctest::Approx(sum).epsilon(1e-9));
    CHECK(w[-1].item<double>() == doctest::Approx(last).epsilon(1e-9));
    CHECK(item.gradient.count_nonzero().item<int64_t>() == 0);
  }
}

TEST_CASE("SOAP's bases are orthogonal, and tend to the factors' eigenvectors") {
  auto host = runs::host();
  const auto soap = host.make<mh::Optimizer>(
      "soap", Table{{"precondition_frequency", 1}, {"shampoo_beta", 0.0}, {"damping", 0.01}}
  );
  auto item = start_of(*soap, {4, 6}, kName);
  for (int64_t step = 1; step <= 60; ++step) {
    item.gradient = sine_gradient(item, 1);
    soap->update({&item, 1}, {.step = step, .lr = 0});
  }
  for (const size_t factor : {2, 4}) { // four of the right's six dimensions have gradients
    const at::Tensor& average = item.state[factor];
    const at::Tensor& basis = item.state[factor + 1];
    const at::Tensor unit = at::mm(basis.t(), basis);
    CHECK((unit - at::eye(unit.size(0), unit.options())).abs().max().item<double>() < 1e-12);
    const at::Tensor turned = at::mm(at::mm(basis.t(), average), basis);
    const at::Tensor apart = turned - turned.diagonal().diag();
    CHECK(apart.norm().item<double>() < 1e-3 * average.norm().item<double>());
    const at::Tensor values = turned.diagonal();
    CHECK((values.slice(0, 1) - values.slice(0, 0, -1)).max().item<double>() < 1e-9); // they fall
  }
}

TEST_CASE("a matrix's preconditioners are refreshed at its turn") {
  auto host = runs::host();
  for (const std::string name : {"soap", "shampoo"}) {
    const auto optimizer =
        host.make<mh::Optimizer>(name, Table{{"precondition_frequency", 5}, {"damping", 0.1}});
    std::vector<int64_t> turns(5, 0);
    for (const char* layer : {"a.weight", "b.weight", "c.weight", "d.weight", "e.weight"}) {
      auto item = start_of(*optimizer, {4, 6}, layer);
      std::vector<int64_t> refreshed;
      for (int64_t step = 1; step <= 12; ++step) {
        const at::Tensor before = item.state[3].clone();
        update(*optimizer, item, step);
        if (!at::equal(item.state[3], before)) {
          refreshed.push_back(step);
        }
      }
      CAPTURE(name);
      REQUIRE(refreshed.size() >= 3);
      CHECK(refreshed.front() == 1);
      for (size_t i = 2; i < refreshed.size(); ++i) {
        CHECK(refreshed[i] - refreshed[i - 1] == 5);
      }
      ++turns[static_cast<size_t>(refreshed[1] % 5)];
    }
    CHECK(*std::ranges::max_element(turns) < 5); // not all at once
  }
}

TEST_CASE("what Shampoo and SOAP keep, and refuse") {
  auto host = runs::host();
  const auto soap = host.make<mh::Optimizer>("soap", Table{{"max_preconditioner_dim", 6}});
  const auto shampoo =
      host.make<mh::Optimizer>("shampoo", Table{{"adamw", Value::Array{"*.up.*"}}});
  using Words = std::vector<std::string>;
  CHECK(
      states(*soap, kName, {4, 6}) ==
      Words{
          "exp_avg 4 6",
          "exp_avg_sq 4 6",
          "left 4 4",
          "left_basis 4 4",
          "right 6 6",
          "right_basis 6 6"}
  );
  CHECK(
      states(*soap, kName, {8, 6}) ==
      Words{"exp_avg 8 6", "exp_avg_sq 8 6", "right 6 6", "right_basis 6 6"}
  );
  const Words adamw{"exp_avg", "exp_avg_sq"}; // in the parameter's shape
  CHECK(states(*soap, kName, {8, 7}) == adamw);
  CHECK(states(*soap, "embedding.word.weight", {4, 6}) == adamw);
  CHECK(states(*soap, "layers.0.norm.weight", {4}) == adamw);
  CHECK(states(*soap, "layers.0.mlp.experts.up.weight", {2, 4, 6}) == adamw);
  CHECK(states(*soap, "layers.0.mlp.experts.down.bias", {2, 4}) == adamw);
  CHECK(states(*shampoo, kName, {4, 6}) == adamw);
  CHECK(states(*shampoo, "layers.0.mlp.down.weight", {4, 6}).at(3) == "left_root 4 4");
  const auto refused = [&](const Table& options) {
    return runs::refusal<mh::Optimizer>(host, "soap", options);
  };
  CHECK(refused({{"betas", Value::Array{0.9}}}).find("two numbers") != std::string::npos);
  CHECK(refused({{"shampoo_beta", 1.0}}).find("shampoo_beta") != std::string::npos);
  CHECK(refused({{"precondition_frequency", 0}}).find("precondition_freq") != std::string::npos);
  CHECK(refused({{"damping", -0.1}}).find("damping") != std::string::npos);
}

TEST_CASE("a matrix without gradients stays where it is") {
  auto host = runs::host();
  for (const std::string name : {"soap", "shampoo"}) {
    const auto optimizer = host.make<mh::Optimizer>(name, Table{{"precondition_frequency", 1}});
    auto item = start_of(*optimizer, {3, 5}, kName);
    const at::Tensor before = item.weight.clone();
    for (int64_t step = 1; step <= 3; ++step) {
      item.gradient = at::zeros({3, 5}, at::kDouble);
      optimizer->update({&item, 1}, {.step = step, .lr = 0.1});
    }
    CAPTURE(name);
    CHECK(at::equal(item.weight, before));
    update(*optimizer, item, 4);
    update(*optimizer, item, 5);
    CHECK_FALSE(at::equal(item.weight, before));
    CHECK(item.weight.isfinite().all().item<bool>());
  }
}

TEST_CASE("of the ranks that split a matrix one holds its state, and all hold about as much") {
  auto host = runs::host();
  const auto soap = host.make<mh::Optimizer>("soap");
  const auto bytes_of = [&](const mh::MeshShape& shape) {
    std::vector<int64_t> bytes(static_cast<size_t>(shape.world()));
    std::map<std::string, int64_t> holders;
    std::mutex mutex;
    mh::run_ranks(shape, [&](const mh::Mesh& mesh) {
      mh::Rules rules;
      rules.features.push_back({mh::axis::mlp, mh::MeshAxis::tp});
      mh::ParameterStore store;
      mh::Builder builder(store, {.mesh = &mesh, .rules = &rules, .seq = 8, .microbatch = 1});
      for (int64_t layer = 0; layer < 4; ++layer) {
        const std::string name = "layers." + std::to_string(layer) + ".up.weight";
        const mh::Dims dims{{mh::axis::mlp, 12}, {mh::axis::embed, 8}};
        builder.parameter({{name, dims, {}}}, {});
      }
      mh::Gradients gradients(store, mesh, {.unit = soap->unit()});
      const mh::Weights weights(gradients, *soap, {.mesh = &mesh});
      const std::scoped_lock lock(mutex);
      bytes[static_cast<size_t>(mesh.rank())] = weights.bytes();
      for (const auto& stored : weights.stored()) {
        holders[stored.name] += stored.data.numel() > 0 ? 1 : 0;
      }
    });
    for (const auto& [name, ranks] : holders) {
      const bool state = name.starts_with("optimizer.");
      CHECK(ranks == (state ? 1 : shape.tp));
    }
    return bytes;
  };
  const int64_t matrix = 4 * (2 * 12 * 8 + 2 * 12 * 12 + 2 * 8 * 8);
  CHECK(bytes_of({}) == std::vector<int64_t>{4 * matrix});
  CHECK(bytes_of({.tp = 2}) == std::vector<int64_t>{2 * matrix, 2 * matrix});
  CHECK(bytes_of({.tp = 4}) == std::vector<int64_t>(4, matrix));
}
