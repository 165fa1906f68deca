// Ten steps of megatron-core 0.16.1's BERT and T5, from its weights and samples: losses and gradient
// norms of every step. tests/parity/golden_encoders.py makes its numbers.

#include "core/mesh/threads.hpp"
#include "core/step/step.hpp"
#include "core/step/weights.hpp"
#include "megahost/host.hpp"
#include "megahost/model.hpp"
#include "tests/dist/placed.hpp"
#include "tests/train/megatron_weights.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <numbers>
#include <sstream>
#include <string>
#include <vector>

namespace {

using megatron::kHeads, megatron::kSteps, megatron::Tensors;

constexpr int64_t kHidden = 64, kVocab = 256, kLength = 32, kDecoderLength = 24, kSamples = 8;
constexpr int64_t kEncoderLayers = 3, kDecoderLayers = 2; // those of the T5

/// Megatron's weights under our names.
class Weights {
public:
  void add(const std::string& theirs, const std::string& ours, const std::vector<int64_t>& sizes) {
    tensors_[ours] = megatron::normal_of(theirs, sizes);
  }

  void linear(const std::string& theirs, const std::string& ours, int64_t rows, int64_t columns) {
    add(theirs + ".weight", ours + ".weight", {rows, columns});
    add(theirs + ".bias", ours + ".bias", {rows});
  }

  void norm(const std::string& ours) {
    tensors_[ours + ".weight"] = at::ones({kHidden});
    tensors_[ours + ".bias"] = at::zeros({kHidden});
  }

  /// Rows of a linear layer that are grouped by heads: each head's of the first part, then those of
  /// the second.
  void
  packed(const std::string& theirs, const std::string& ours, const std::vector<std::string>& into) {
    const auto parts = static_cast<int64_t>(into.size());
    for (const char* kind : {".weight", ".bias"}) {
      std::vector<int64_t> sizes{parts * kHidden};
      if (std::string(kind) == ".weight") {
        sizes.push_back(kHidden);
      }
      const auto groups =
          megatron::normal_of(theirs + kind, sizes).view({kHeads, parts, kHidden / kHeads, -1});
      for (int64_t i = 0; i < parts; ++i) {
        sizes[0] = kHidden;
        tensors_[ours + into[static_cast<size_t>(i)] + kind] = groups.select(1, i).reshape(sizes);
      }
    }
  }

  void layer(const std::string& theirs, const std::string& ours, bool cross = false) {
    norm(ours + "attention_norm");
    packed(theirs + "self_attention.linear_qkv", ours + "attention.", {"q", "k", "v"});
    linear(theirs + "self_attention.linear_proj", ours + "attention.out", kHidden, kHidden);
    if (cross) {
      norm(ours + "cross_attention_norm");
      packed(theirs + "cross_attention.linear_q", ours + "cross_attention.", {"q"});
      packed(theirs + "cross_attention.linear_kv", ours + "cross_attention.", {"k", "v"});
      linear(
          theirs + "cross_attention.linear_proj", ours + "cross_attention.out", kHidden, kHidden
      );
    }
    norm(ours + "mlp_norm");
    linear(theirs + "mlp.linear_fc1", ours + "mlp.up", 4 * kHidden, kHidden);
    linear(theirs + "mlp.linear_fc2", ours + "mlp.down", kHidden, 4 * kHidden);
  }

  void tables() {
    add("embedding.word_embeddings.weight", "embedding.word.weight", {kVocab, kHidden});
    add("embedding.position_embeddings.weight", "embedding.position.weight", {kLength, kHidden});
  }

  [[nodiscard]] const Tensors& all() const { return tensors_; }

private:
  Tensors tensors_;
};

Tensors bert_weights() {
  Weights weights;
  weights.tables();
  weights.add("embedding.tokentype_embeddings.weight", "embedding.token_type.weight", {2, kHidden});
  for (int64_t i = 0; i < 4; ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    weights.layer("encoder." + layer, layer);
  }
  weights.norm("head.norm");
  weights.linear("lm_head.dense", "head.transform", kHidden, kHidden);
  weights.norm("head.transform_norm");
  weights.add("output_layer.bias", "head.bias", {kVocab});
  weights.linear("pooler.dense", "head.pooler", kHidden, kHidden);
  weights.linear("binary_head", "head.pair", 2, kHidden);
  return weights.all();
}

Tensors t5_weights() {
  Weights weights;
  weights.tables();
  for (int64_t i = 0; i < kEncoderLayers + kDecoderLayers; ++i) {
    const bool decodes = i >= kEncoderLayers;
    weights.layer(
        (decodes ? "decoder.layers." : "encoder.layers.") +
            std::to_string(decodes ? i - kEncoderLayers : i) + ".",
        "layers." + std::to_string(i) + ".",
        decodes
    );
  }
  weights.norm("layers." + std::to_string(kEncoderLayers) + ".memory_norm");
  weights.norm("head.norm");
  weights.add("lm_head.output_layer.bias", "head.bias", {kVocab});
  return weights.all();
}

/// Integers of one step, in the order that they are asked for: [samples, length], or [samples, 1].
class Draws {
public:
  explicit Draws(int64_t step)
      : generator_(at::make_generator<at::CPUGeneratorImpl>(100 + static_cast<uint64_t>(step))) {}

  at::Tensor operator()(int64_t low, int64_t high, int64_t length) {
    return at::randint(low, high, {kSamples, length}, generator_, at::kLong);
  }

private:
  at::Generator generator_;
};

/// All samples' arrays [samples, length].
Tensors bert_arrays(int64_t step) {
  Draws draw(step);
  Tensors arrays{{"tokens", draw(0, kVocab, kLength)}, {"labels", draw(0, kVocab, kLength)}};
  const auto hidden = draw(0, 6, kLength).eq(0);
  const auto ends = draw(20, kLength + 1, 1), pivots = draw(5, 15, 1), swapped = draw(0, 2, 1);
  const auto place = at::arange(kLength);
  const auto text = place.lt(ends);
  const auto first = place.eq(0).expand({kSamples, kLength});
  arrays["loss_mask"] = (hidden & text).to(at::kFloat);
  arrays["token_types"] = (place.ge(pivots) & text).to(at::kLong);
  arrays["segments"] = 1 - text.to(at::kLong);
  arrays["order_labels"] = first * swapped;
  arrays["order_loss_mask"] = first.to(at::kFloat);
  return arrays;
}

Tensors t5_arrays(int64_t step) {
  Draws draw(step);
  const auto texts = draw(1, kVocab, kLength), words = draw(1, kVocab, kDecoderLength),
             labels = draw(0, kVocab, kDecoderLength);
  const auto text = at::arange(kLength).lt(draw(20, kLength + 1, 1));
  const auto written = at::arange(kDecoderLength).lt(draw(10, kDecoderLength + 1, 1));
  return {
      {"encoder_tokens", texts * text},
      {"encoder_segments", 1 - text.to(at::kLong)},
      {"tokens", words * written},
      {"labels", labels},
      {"loss_mask", written.to(at::kFloat)},
      {"segments", at::zeros({kSamples, kDecoderLength}, at::kLong)}};
}

struct Golden {
  std::string name;
  mh::Table model;
  int64_t seq;
  Tensors weights; ///< under our names
  Tensors (*arrays)(int64_t step);
  std::vector<std::string> losses;
};

/// Trains as one of the ranks.
void check_ten_steps(
    const Golden& golden, const mh::Architecture& architecture, const mh::Mesh& mesh, int64_t zero
) {
  const mh::Rules rules = mh::rules_of(/*sequence=*/true);
  const int64_t data_ranks = mesh.shape().dp;
  mh::Model model(
      architecture, {.mesh = &mesh, .rules = &rules, .seq = golden.seq, .microbatch = data_ranks}
  );
  auto& parameters = model.parameters();
  {
    const at::NoGradGuard no_grad;
    for (const auto& [name, value] : golden.weights) {
      auto* parameter = parameters.find(name);
      REQUIRE_MESSAGE(parameter != nullptr, name);
      for (const auto& piece : parameter->pieces) {
        if (piece.name == name) {
          parameter->view(parameter->value, piece).copy_(mh::slice_of(value, piece));
        }
      }
    }
  }
  mh::Host host;
  const auto adamw = host.make<mh::Optimizer>(
      "adamw", mh::Table{{"betas", mh::Value::Array{0.9, 0.95}}, {"eps", 1e-8}}
  );
  mh::Gradients gradients(parameters, mesh, {.zero = zero});
  mh::Weights weights(gradients, *adamw, {.weight_decay = 0.01});
  REQUIRE((zero > 0 || weights.stored().size() == 3 * golden.weights.size())); // all were set

  std::ifstream printed(
      std::string(std::getenv("MEGAHOST_SOURCE")) + "/tests/parity/golden/" + golden.name + ".txt"
  );
  for (int64_t step = 0; step < kSteps; ++step) {
    const Tensors arrays = golden.arrays(step);
    std::vector<mh::Batch> batches;
    for (int64_t first = 0; first < kSamples; first += data_ranks) {
      const int64_t sample = first + mesh.coordinate(mh::MeshAxis::dp);
      mh::Batch batch;
      batch.seq = golden.seq;
      batch.batch = data_ranks;
      batch.sequences = architecture.sequences();
      batch.samples = {kSamples * step + sample};
      for (const auto& [name, array] : arrays) {
        batch.arrays[name] = array[sample].unsqueeze(1);
      }
      batches.push_back(batch);
    }
    const auto n = static_cast<double>(step);
    const double lr =
        n <= 2 ? 1e-3 * n / 2 : 1e-4 + 9e-4 * 0.5 * (std::cos(std::numbers::pi * (n - 2) / 8) + 1);
    const auto result = mh::train_step(
        {mesh, rules, model, at::kCPU, /*checking=*/false, nullptr, &gradients},
        weights,
        *adamw,
        batches,
        {.seed = 1, .clip = 1.0, .update = {.step = step + 1, .lr = lr}}
    );
    std::string line;
    REQUIRE(std::getline(printed, line));
    CAPTURE(line);
    const auto number = [&](const std::string& after) {
      return std::stod(line.substr(line.find(after) + after.size()));
    };
    for (const std::string& name : golden.losses) {
      CAPTURE(name);
      const auto found = std::ranges::find(result.losses, name, &mh::LossValue::name);
      REQUIRE(found != result.losses.end());
      CHECK(found->value == doctest::Approx(number(name)).epsilon(1e-5).scale(0));
    }
    CHECK(result.gradient_norm == doctest::Approx(number("grad norm")).epsilon(1e-5).scale(0));
  }
}

struct GoldenLayout {
  mh::MeshShape shape{};
  int64_t zero = 0;
};

void check_layouts(const Golden& golden, const std::string& use) {
  mh::Host host;
  const auto architecture =
      host.make<mh::Architecture>(use, golden.model, {.vocab = kVocab, .seq_length = golden.seq});
  for (const auto& [shape, zero] :
       {GoldenLayout{},
        GoldenLayout{{.tp = 2}}, // with sequence
        GoldenLayout{{.dp = 2}, /*zero=*/1}}) {
    CAPTURE(shape.tp);
    CAPTURE(shape.dp);
    mh::run_ranks(shape, [&](const mh::Mesh& mesh) {
      check_ten_steps(golden, *architecture, mesh, zero);
    });
  }
}

} // namespace

TEST_CASE("ten steps of Megatron's BERT, on one rank and under two layouts") {
  check_layouts(
      {.name = "bert",
       .model =
           {{"layers", 4},
            {"hidden", kHidden},
            {"heads", kHeads},
            {"activation", "gelu_tanh"},
            {"head_activation", "gelu"},
            {"norm_placement", "pre"},
            {"norm_eps", 1e-5}},
       .seq = kLength,
       .weights = bert_weights(),
       .arrays = bert_arrays,
       .losses = {"lm loss", "sop loss"}},
      "bert"
  );
}

TEST_CASE("ten steps of Megatron's T5, on one rank and under two layouts") {
  check_layouts(
      {.name = "t5",
       .model =
           {{"encoder_layers", kEncoderLayers},
            {"layers", kDecoderLayers},
            {"hidden", kHidden},
            {"heads", kHeads},
            {"encoder_length", kLength},
            {"norm", "layernorm"},
            {"norm_eps", 1e-5},
            {"activation", "gelu"},
            {"positions", "learned"},
            {"bias", true}},
       .seq = kDecoderLength,
       .weights = t5_weights(),
       .arrays = t5_arrays,
       .losses = {"lm loss"}},
      "t5"
  );
}
