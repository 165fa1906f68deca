// Numbers of an update on the host and in memory: the same bits, and none is read
// where the host must not wait.

#include "core/step/weights.hpp"
#include "megahost/error.hpp"
#include "megahost/gradients.hpp"
#include "megahost/optimizer.hpp"
#include "runs.hpp"
#include "tests/formats/refusal.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/zeros.h>

#include <doctest/doctest.h>

#include <string>
#include <type_traits>
#include <vector>

using mh::Number;
using mh::Table;
using mh::UpdateItem;
using mh::test::refusal;

static_assert(
    !std::is_copy_constructible_v<mh::Weights>, "a copy's tensors would be the same ones"
);

namespace {

constexpr double kDecay = 0.1;

/// The numbers of a step, in memory that a recorded step would read: the same tensors each time.
struct Held {
  explicit Held(at::Device device)
      : options(at::TensorOptions(at::kDouble).device(device)) {}

  mh::Update update(const mh::Update& numbers) {
    step.fill_(numbers.step.number());
    lr.fill_(numbers.lr.number());
    scale.fill_(numbers.gradient_scale.number());
    return {
        .step = Number(step),
        .lr = Number(lr),
        .gradient_scale = Number(scale),
        .seed = numbers.seed};
  }

  at::TensorOptions options;
  at::Tensor step = at::zeros({}, options), lr = at::zeros({}, options),
             scale = at::zeros({}, options), decay = at::full({}, kDecay, options);
};

/// A matrix of a block, one of the embedding, and a vector, with their state.
std::vector<UpdateItem>
items_of(const mh::Optimizer& optimizer, at::ScalarType dtype, at::Device device = at::kCPU) {
  std::vector<UpdateItem> items;
  for (const auto& [name, shape] :
       {std::pair<std::string, std::vector<int64_t>>{"layers.0.mlp.up.weight", {9, 8}},
        {"embedding.word.weight", {5, 8}},
        {"layers.0.norm.weight", {7}}}) {
    UpdateItem item;
    item.name = name;
    const int64_t size = shape.size() == 2 ? shape[0] * shape[1] : shape[0];
    item.weight = at::linspace(-1, 1, size).view(shape).to(device, dtype);
    item.lr_multiplier = name.starts_with("layers") ? 0.3 : 1;
    for (const auto& spec : optimizer.state_of(name, shape)) {
      const bool wide = dtype == at::kDouble;
      item.state.push_back(at::zeros(
          spec.shape.empty() ? shape : spec.shape,
          item.weight.options().dtype(wide ? at::kDouble : spec.dtype)
      ));
    }
    if (optimizer.keeps_other_weights()) {
      item.parameter = item.weight.clone();
    }
    items.push_back(item);
  }
  return items;
}

/// Gradients and decay of a step.
void prepare(std::vector<UpdateItem>& items, int64_t step, const Number& decay) {
  for (auto& item : items) {
    const auto type = item.weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    item.gradient = at::linspace(0.5, -0.1 * static_cast<double>(step), item.weight.numel())
                        .view(item.weight.sizes())
                        .to(item.weight.device(), type);
    item.weight_decay = decay * (item.weight.dim() == 2 ? 1.0 : 0.0);
  }
}

const std::vector<std::pair<std::string, Table>>& built_in() {
  static const std::vector<std::pair<std::string, Table>> all{
      {"adamw", {}},
      {"adam", {}},
      {"sgd", {}},
      {"sgd", {{"momentum", 0.9}, {"nesterov", true}}},
      {"muon", {}},
      {"muon", {{"scale", "original"}, {"nesterov", false}}},
      {"adafactor", {{"beta1", 0.9}, {"relative_step", true}}},
      {"schedule_free_adamw", {{"r", 1.0}}}};
  return all;
}

} // namespace

TEST_CASE("a number is a double, or a scalar in memory times a factor") {
  const Number host = 0.25;
  CHECK_FALSE(host.is_tensor());
  const double plain = host * 2;
  CHECK(plain == 0.5);
  CHECK(host.tensor().item<double>() == 0.25);
  const at::Tensor memory = at::full({}, 3.0, at::kDouble);
  Number held = Number(memory) * 0.5;
  held /= 2;
  CHECK(held.is_tensor());
  CHECK(held.base().is_same(memory));
  CHECK(held.tensor().item<double>() == 0.75);
  memory.fill_(8); // the value when it is read counts
  CHECK(held.read() == 2);
  CHECK((held * host).read() == 0.5);
  CHECK((held * held).read() == 4);
  CHECK(refusal([&] { (void)held.number(); }).find("asked for on the host") != std::string::npos);
  for (const at::Tensor& wrong : {at::Tensor(), at::zeros({1}, at::kDouble), at::zeros({})}) {
    CHECK(refusal([&] {
            (void)Number(wrong);
          }).find("expected a float64 tensor") != std::string::npos);
  }
}

TEST_CASE("built-in optimizers make the same bits of numbers on the host and in memory") {
  auto host = runs::host();
  for (const auto& [name, options] : built_in()) {
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      CAPTURE(name);
      CAPTURE(c10::toString(dtype));
      const bool narrow = dtype == at::kBFloat16;
      const auto optimizer = host.make<mh::Optimizer>(
          name,
          options,
          {.state_dtype = narrow ? at::kBFloat16 : at::kFloat, .stochastic_rounding = narrow}
      );
      REQUIRE(optimizer->takes_tensors());
      auto plain = items_of(*optimizer, dtype), held = items_of(*optimizer, dtype);
      Held memory(at::kCPU);
      for (int64_t step = 1; step <= 3; ++step) {
        const double scale = 0.7 / static_cast<double>(step);
        const mh::Update update{
            .step = step, .lr = 0.01 * scale, .gradient_scale = scale, .seed = 5};
        prepare(plain, step, kDecay);
        prepare(held, step, Number(memory.decay));
        const auto before = plain.front().weight.clone();
        optimizer->update(plain, update);
        optimizer->update(held, memory.update(update));
        CHECK_FALSE(at::equal(plain.front().weight, before));
      }
      for (size_t i = 0; i < plain.size(); ++i) {
        CHECK(at::equal(plain[i].weight, held[i].weight));
        for (size_t s = 0; s < plain[i].state.size(); ++s) {
          CHECK(at::equal(plain[i].state[s], held[i].state[s]));
        }
      }
    }
  }
}

TEST_CASE("on the Meta device no number is read, wherever it lies") {
  auto host = runs::host();
  for (const auto& [name, options] : built_in()) {
    CAPTURE(name);
    const auto optimizer = host.make<mh::Optimizer>(name, options);
    auto items = items_of(*optimizer, at::kFloat, at::kMeta);
    Held planned(at::kMeta);
    prepare(items, 1, Number(planned.decay));
    const auto update = planned.update({.step = 1, .lr = 0.1});
    CHECK_THROWS((void)update.lr.read()); // it could not be
    optimizer->update(items, update);
    Held memory(at::kCPU);
    prepare(items, 2, Number(memory.decay));
    optimizer->update(items, memory.update({.step = 2, .lr = 0.1}));
    CHECK(items.front().weight.is_meta());
  }
}

namespace {

/// w -= lr g - lr decay w, and what the numbers were.
class Third : public mh::Optimizer {
public:
  explicit Third(bool takes_tensors)
      : takes_(takes_tensors) {}

  [[nodiscard]] std::vector<mh::StateSpec> state() const override { return {}; }

  [[nodiscard]] bool takes_tensors() const override { return takes_; }

  void update(std::span<UpdateItem> items, const mh::Update& update) const override {
    tensors = update.lr.is_tensor() || items.front().weight_decay.is_tensor();
    for (auto& item : items) {
      const double lr = update.lr * item.lr_multiplier;
      const at::Tensor gradient = item.gradient.mul(update.gradient_scale);
      item.weight.mul_(1 - lr * item.weight_decay).sub_(gradient, lr);
    }
  }

  mutable bool tensors = false;

private:
  bool takes_;
};

/// One weight of 4 x 3, and its gradients.
struct OneWeight {
  OneWeight() {
    mh::Parameter parameter;
    parameter.value = at::linspace(-1, 1, 12).view({4, 3}).requires_grad_();
    mh::Piece piece;
    piece.name = "w";
    piece.shape = piece.global_shape = {4, 3};
    piece.offset = {0, 0};
    parameter.pieces.push_back(piece);
    store.add(std::move(parameter));
    gradients = std::make_unique<mh::Gradients>(store, mesh);
  }

  at::Tensor
  update(mh::Weights& weights, const mh::Optimizer& optimizer, const mh::Update& update) {
    gradients->owned().front().gradient.fill_(0.5);
    weights.update(optimizer, update);
    return store.all().front().value.detach().clone();
  }

  mh::Mesh mesh;
  mh::ParameterStore store;
  std::unique_ptr<mh::Gradients> gradients;
};

} // namespace

TEST_CASE("an optimizer that takes no tensors is given what is in them at each update") {
  OneWeight plain, held;
  const Third third(/*takes_tensors=*/false);
  mh::Weights a(*plain.gradients, third, {.weight_decay = kDecay});
  mh::Weights b(*held.gradients, third);
  Held memory(at::kCPU);
  b.set_weight_decay(Number(memory.decay));
  for (int64_t step = 1; step <= 3; ++step) {
    const double decay = kDecay * static_cast<double>(step);
    a.set_weight_decay(decay);
    memory.decay.fill_(decay);
    const mh::Update update{
        .step = step, .lr = 0.1 / static_cast<double>(step), .gradient_scale = 0.5};
    const auto expected = plain.update(a, third, update);
    CHECK(at::equal(held.update(b, third, memory.update(update)), expected));
    CHECK_FALSE(third.tensors);
  }
  const Third wrong(/*takes_tensors=*/true);
  CHECK(refusal([&] {
          (void)held.update(b, wrong, memory.update({.step = 4, .lr = 0.1}));
        }).find("a number of this update is in memory of cpu") != std::string::npos);
  CHECK(wrong.tensors);
}
