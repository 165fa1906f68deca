// Parameters that are trained in another way than the rest, and what an optimizer's state takes.

#include "core/memory/counting_allocator.hpp"
#include "core/step/parameter_groups.hpp"
#include "core/step/weights.hpp"
#include "megahost/error.hpp"
#include "megahost/gradients.hpp"
#include "megahost/nn/experts.hpp"
#include "tiny.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <map>

namespace {

/// AdamW by the built-in pass.
class BuiltInAdamW : public mh::Optimizer {
public:
  [[nodiscard]] std::vector<mh::StateSpec> state() const override { return {{"m"}, {"v"}}; }

  [[nodiscard]] bool finishes() const override { return true; }

  void update(std::span<mh::UpdateItem> items, const mh::Update& update) const override {
    for (const auto& item : items) {
      seen[item.name] = {item.lr_multiplier, item.weight_decay};
    }
    mh::update_fused({.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8}, items, update);
  }

  mutable std::map<std::string, std::pair<double, double>> seen;
};

std::vector<mh::Batch> batches(const tiny::Built& model) {
  return mh::load_batches(
      model.corpus, mh::Split::train, 0, {.seq = tiny::kSeq, .micro = 2, .microbatches = 2}
  );
}

/// A tiny model whose groups are applied before gradients are allocated.
struct Grouped : tiny::Built {
  explicit Grouped(
      std::vector<mh::Recipe::ParameterGroup> groups, at::ScalarType dtype = at::kFloat
  )
      : Built(tiny::config(), nullptr, dtype, /*allocate=*/false)
      , groups(std::move(groups)) {
    mh::freeze(model->parameters(), this->groups, {});
    allocate_gradients();
  }

  /// Norm and update of one step.
  double step(mh::Weights& weights, const BuiltInAdamW& optimizer) const {
    return mh::train_step(
               passes(),
               weights,
               optimizer,
               batches(*this),
               {.seed = 1, .clip = 0, .update = {.step = 1, .lr = 0.01}}
    ).gradient_norm;
  }

  std::vector<mh::Recipe::ParameterGroup> groups;
};

std::map<std::string, at::Tensor> values(mh::ParameterStore& store) {
  std::map<std::string, at::Tensor> all;
  for (const auto& parameter : store.all()) {
    for (const auto& piece : parameter.pieces) {
      all[piece.name] = parameter.view(parameter.value.detach(), piece).clone();
    }
  }
  return all;
}

std::string refusal(tiny::Group group) {
  try {
    const Grouped model({std::move(group)});
  } catch (const mh::Error& error) {
    CHECK(error.exit_code() == mh::exit_code::recipe);
    return std::string(error.what()) + " " + error.hint();
  }
  return "accepted";
}

} // namespace

TEST_CASE("groups multiply rates and decay, the last one wins") {
  Grouped model(
      {tiny::Group({"layers.*"}).lr(0.5),
       tiny::Group({"layers.1.*", "embedding.*"}).lr(0.25).decay(0.5),
       tiny::Group({"*.q.weight"}).decay(0)}
  );
  const BuiltInAdamW adamw;
  mh::Weights weights(*model.sums, adamw, {.weight_decay = 0.2, .groups = model.groups});
  (void)model.step(weights, adamw);
  using Seen = std::pair<double, double>;
  CHECK(adamw.seen.at("layers.0.mlp.up.weight") == Seen{0.5, 0.2});
  CHECK(adamw.seen.at("layers.0.mlp.up.bias") == Seen{0.5, 0});
  CHECK(adamw.seen.at("layers.1.mlp.up.weight") == Seen{0.25, 0.1});
  CHECK(adamw.seen.at("layers.1.attention.q.weight") == Seen{0.25, 0});
  CHECK(adamw.seen.at("embedding.word.weight") == Seen{0.25, 0.1});
  CHECK(adamw.seen.at("head.norm.weight") == Seen{1, 0});
  weights.set_weight_decay(0.4);
  (void)model.step(weights, adamw);
  CHECK(adamw.seen.at("layers.1.mlp.up.weight") == Seen{0.25, 0.2});
  mh::Weights all(*model.sums, adamw, {.weight_decay = 0.2, .decay_vectors = true});
  (void)model.step(all, adamw);
  CHECK(adamw.seen.at("head.norm.weight") == Seen{1, 0.2});
}

TEST_CASE("biases of experts are vectors, though all of a layer are one tensor") {
  const mh::Mesh mesh;
  const mh::Rules rules;
  mh::ParameterStore store;
  mh::Builder builder(store, {.mesh = &mesh, .rules = &rules, .seq = 4, .microbatch = 1});
  const mh::Experts experts(
      builder, {.embed = {mh::axis::embed, 4}, .experts = 2, .hidden = 6, .bias = true}
  );
  mh::Gradients gradients(store, mesh);
  const BuiltInAdamW adamw;
  mh::Weights weights(gradients, adamw, {.weight_decay = 0.2});
  weights.update(adamw, {.step = 1, .lr = 0.1});
  using Seen = std::pair<double, double>;
  CHECK(adamw.seen.at("down.weight") == Seen{1, 0.2});
  CHECK(adamw.seen.at("down.bias") == Seen{1, 0});
  CHECK(adamw.seen.at("gate_up.bias") == Seen{1, 0});
}

TEST_CASE("frozen parameters keep every bit, and have no gradient, no norm and no state") {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    // the embedding is a whole leaf (and the tied head), q is a part of one with k and v
    Grouped model({tiny::Group({"embedding.*", "layers.0.attention.q.*"}).freeze()}, dtype);
    auto& parameters = model.model->parameters();
    const BuiltInAdamW adamw;
    mh::Weights weights(*model.sums, adamw, {.weight_decay = 0.1, .groups = model.groups});
    CHECK_FALSE(parameters.find("embedding.word.weight")->main_grad.defined());
    const auto before = values(parameters);
    const double norm = model.step(weights, adamw);
    CHECK(norm > 0);
    size_t frozen = 0;
    for (const auto& [name, value] : values(parameters)) {
      const bool kept = name.starts_with("embedding.") || name.starts_with("layers.0.attention.q.");
      frozen += kept ? 1 : 0;
      CAPTURE(name);
      CHECK(at::equal(value, before.at(name)) == kept);
      CHECK(adamw.seen.contains(name) != kept);
      const auto states = std::count_if(
          weights.stored().begin(),
          weights.stored().end(),
          [&, name = name](const auto& stored) { return stored.piece->name == name; }
      );
      CHECK(states == (kept ? 1 : 3)); // a checkpoint has all weights
    }
    CHECK(frozen == 4);
    CHECK(model.main_gradients().count_nonzero().item<int64_t>() == 0);

    // the norm is that of the gradients which are left
    Grouped whole({}, dtype);
    (void)mh::forward_backward(whole.passes(), batches(whole), 1);
    double squares = 0;
    for (const auto& parameter : whole.model->parameters().all()) {
      for (const auto& piece : parameter.pieces) {
        if (adamw.seen.contains(piece.name)) {
          squares += parameter.view(parameter.main_grad, piece).square().sum().item<double>();
        }
      }
    }
    CHECK(norm == doctest::Approx(std::sqrt(squares)).epsilon(1e-4));
  }
}

TEST_CASE("a group that matches nothing is refused, with what may be meant") {
  CHECK(refusal(tiny::Group({"layers.*"})) == "accepted");
  const auto typo = refusal(tiny::Group({"*.atention.q.weight"}));
  CHECK(
      typo.find("groups[0].match: no parameter's name is like \"*.atention.q.weight\"") !=
      std::string::npos
  );
  CHECK(typo.find("did you mean \"*.attention.q.weight\"?") != std::string::npos);
  CHECK(
      refusal(tiny::Group({"decoder.*"})).find("names are such as embedding.") != std::string::npos
  );
  CHECK(refusal(tiny::Group({"*"}).freeze()).find("freezes every parameter") != std::string::npos);
}

TEST_CASE("offloaded masters and state take no memory of the device") {
  const mh::MetaMemory meta; // memory of a device that stands for an accelerator
  mh::Mesh mesh;
  mh::Rules rules;
  const mh::Decoder decoder(tiny::config(), {.vocab = tiny::kVocab, .seq_length = tiny::kSeq});
  mh::Model model(
      decoder,
      {.mesh = &mesh,
       .rules = &rules,
       .device = at::kMeta,
       .dtype = at::kBFloat16,
       .seq = tiny::kSeq,
       .microbatch = 1}
  );
  auto& parameters = model.parameters();
  mh::Gradients gradients(parameters, mesh);
  const BuiltInAdamW adamw;
  const int64_t before = meta.used();
  {
    mh::Weights here(gradients, adamw);
    // a float32 master and two float32 states for each weight
    CHECK(here.bytes() == 12 * parameters.global_elements());
    CHECK(here.host_bytes() == 0);
    CHECK(meta.used() - before == here.bytes());
    here.update(adamw, {.step = 1, .lr = 0.1});
  }
  mh::Weights there(gradients, adamw, {.offload = true});
  CHECK(there.bytes() == 0);
  CHECK(there.host_bytes() >= 12 * parameters.global_elements());
  CHECK(meta.used() - before < parameters.global_elements() / 4); // a scalar for each tensor
  there.update(adamw, {.step = 1, .lr = 0.1});
}
