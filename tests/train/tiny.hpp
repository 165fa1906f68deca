#pragma once
/// A small decoder and a corpus of made-up tokens, without plugins.

#include "core/step/batches.hpp"
#include "core/step/step.hpp"
#include "megahost/corpus.hpp"
#include "megahost/gradients.hpp"
#include "megahost/model.hpp"
#include "megahost/nn/decoder.hpp"
#include "megahost/recipe.hpp"

#include <ATen/ops/cat.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tiny {

inline constexpr int64_t kSeq = 12;
inline constexpr int64_t kVocab = 20;

/// Token t of sample i, with the tail of every third sample masked.
class Numbers : public mh::Corpus {
public:
  [[nodiscard]] int64_t size(mh::Split) const override { return 100; }

  [[nodiscard]] mh::Sample sample(mh::Split, int64_t index) const override {
    std::vector<int64_t> tokens, labels;
    std::vector<float> mask;
    for (int64_t t = 0; t < kSeq; ++t) {
      tokens.push_back((index * 7 + t * 3) % kVocab);
      labels.push_back((index * 7 + (t + 1) * 3) % kVocab);
      mask.push_back(index % 3 == 0 && t >= kSeq / 2 ? 0.0F : 1.0F);
    }
    return {{"tokens", tokens}, {"labels", labels}, {"loss_mask", mask}};
  }

  [[nodiscard]] std::string summary() const override { return "numbers"; }
};

inline mh::DecoderConfig config(double dropout = 0) {
  mh::DecoderConfig config;
  config.layers = 2;
  config.hidden = 16;
  config.heads = 2;
  config.vocab = kVocab;
  config.dropout = dropout;
  config.attention_dropout = dropout;
  return config;
}

/// `optimizer.groups` of one group.
struct Group : mh::Recipe::ParameterGroup {
  explicit Group(std::vector<std::string> names) { match = std::move(names); }

  Group& lr(double factor) {
    lr_multiplier = factor;
    return *this;
  }

  Group& decay(double factor) {
    decay_multiplier = factor;
    return *this;
  }

  Group& freeze() {
    frozen = true;
    return *this;
  }
};

/// A model with its gradients allocated.
struct Built {
  explicit Built(
      const mh::DecoderConfig& config,
      const mh::RecomputePolicy* policy = nullptr,
      at::ScalarType dtype = at::kFloat,
      bool allocate = true
  )
      : decoder(config, {.vocab = kVocab, .seq_length = kSeq}) {
    model = std::make_unique<mh::Model>(
        decoder,
        mh::Builder::Args{
            .mesh = &mesh, .rules = &rules, .dtype = dtype, .seq = kSeq, .microbatch = 1},
        policy
    );
    if (allocate) {
      allocate_gradients();
    }
  }

  void allocate_gradients() { sums = std::make_unique<mh::Gradients>(model->parameters(), mesh); }

  [[nodiscard]] mh::Passes passes() const {
    return {mesh, rules, *model, at::kCPU, /*checking=*/false, nullptr, sums.get()};
  }

  /// All gradients, one after the other.
  [[nodiscard]] at::Tensor main_gradients() const {
    std::vector<at::Tensor> all;
    for (const auto& parameter : model->parameters().all()) {
      if (parameter.main_grad.defined()) {
        all.push_back(parameter.main_grad.view({-1}));
      }
    }
    return at::cat(all);
  }

  /// Gradients of one step of four samples.
  at::Tensor gradients(int64_t micro, uint64_t seed = 5) {
    const mh::BatchLayout layout{.seq = kSeq, .micro = micro, .microbatches = 4 / micro};
    const auto batches = mh::load_batches(corpus, mh::Split::train, 0, layout);
    sums->begin(layout.microbatches);
    sums->clear();
    losses = mh::forward_backward(passes(), batches, seed);
    sums->finish();
    return main_gradients();
  }

  mh::Mesh mesh;
  mh::Rules rules;
  mh::Decoder decoder;
  Numbers corpus;
  std::unique_ptr<mh::Model> model;
  std::unique_ptr<mh::Gradients> sums;
  std::vector<mh::LossValue> losses;
};

} // namespace tiny
