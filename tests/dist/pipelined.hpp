#pragma once
// A model on ranks as threads, through a pipeline, with everything that is compared.

#include "core/mesh/threads.hpp"
#include "core/recipe/pipeline_layout.hpp"
#include "core/train/stages.hpp"
#include "core/train/step.hpp"
#include "megahost/model.hpp"
#include "plugins/parallel/pipeline/orders.hpp"
#include "tests/dist/placed.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace mh::pipelined {

inline constexpr int64_t kSeq = 8, kBatch = 2, kVocab = 50, kMicrobatches = 8;

using MakeOrder = pipeline::Order (*)(const pipeline::Args&);

class Ordered : public PipelineSchedule {
public:
  Ordered(const Args& args, MakeOrder make)
      : order_(make(args))
      , lists_(with_transfers(args, order_.passes)) {}

  [[nodiscard]] std::vector<Instruction> instructions(int64_t stage) const override {
    return lists_[static_cast<size_t>(stage)];
  }

  [[nodiscard]] int64_t most_live(int64_t stage) const override {
    return order_.most_live[static_cast<size_t>(stage)];
  }

private:
  pipeline::Order order_;
  InstructionLists lists_;
};

struct FullRecompute : RecomputePolicy {
  [[nodiscard]] Keep keep(int64_t layer) const override {
    return {.everything = false, .joined = layer % 2 != 0};
  }
};

struct Layout {
  MeshShape shape{};
  MakeOrder order = pipeline::one_forward_one_backward;
  std::string chunks{}; // "embed+2|2+head"; empty: one
  bool sequence = false;
  bool recompute = false;
};

struct Result {
  double loss = 0, evaluation = 0, squared_norm = 0;
  std::map<std::string, at::Tensor> gradients, values; // of the global tensors
};

inline std::vector<Batch> batches_of(const Group& dp) {
  std::vector<Batch> batches;
  for (int64_t m = 0; m < kMicrobatches; ++m) {
    const at::Tensor tokens =
        (at::arange(kSeq * kBatch).view({kSeq, kBatch}) * 7 + m * 11) % kVocab;
    at::Tensor mask = at::ones({kSeq, kBatch});
    mask[kSeq - 1][0].fill_(m % 2);
    Batch batch{
        .arrays =
            {{"tokens", dp.slice(tokens, 1).contiguous()},
             {"labels", dp.slice((tokens * 3 + 1) % kVocab, 1).contiguous()},
             {"loss_mask", dp.slice(mask, 1).contiguous()}},
        .samples = {},
        .seq = kSeq,
        .batch = kBatch};
    for (int64_t i = 0; i < kBatch / dp.size(); ++i) {
      batch.samples.push_back(m * kBatch + dp.index() * (kBatch / dp.size()) + i);
    }
    batches.push_back(std::move(batch));
  }
  return batches;
}

/// Writes this rank's slice into the global tensor; ranks that hold the same must agree bit for bit
/// if `same` is asked for.
inline void
put(std::map<std::string, at::Tensor>& all, const Piece& piece, const at::Tensor& local, bool same
) {
  constexpr double kNothing = 1e9;
  auto& whole = all[piece.name];
  if (!whole.defined()) {
    whole = at::ones(piece.global_shape, at::kDouble) * kNothing; // what no rank writes shows
  }
  const at::Tensor slice = slice_of(whole, piece);
  if (same && slice.numel() > 0 && slice.max().item<double>() < kNothing) {
    CHECK_MESSAGE(at::equal(slice, local), piece.name);
  }
  slice.copy_(local);
}

inline Result
run(const Architecture& architecture, const Layout& layout, const WrapBackend& wrap = nullptr) {
  Result result;
  std::mutex mutex;
  run_ranks(
      layout.shape,
      [&](const Mesh& mesh) {
        const Rules rules = rules_of(layout.sequence);
        const FullRecompute full;
        std::vector<ModelChunk> chunks;
        std::unique_ptr<Pipeline> pipeline;
        if (!layout.chunks.empty()) {
          chunks = chunks_of(parse_layout(layout.chunks).value());
          pipeline = std::make_unique<Pipeline>(
              [&](const PipelineSchedule::Args& args) {
                return std::make_unique<Ordered>(args, layout.order);
              },
              layout.shape.pp,
              static_cast<int64_t>(chunks.size()) / layout.shape.pp
          );
        }
        Model model(
            architecture,
            {.mesh = &mesh,
             .rules = &rules,
             .dtype = at::kDouble,
             .seed = 3,
             .seq = kSeq,
             .microbatch = kBatch,
             .vocab_multiple = 4,
             .chunks = chunks},
            layout.recompute ? &full : nullptr
        );
        model.parameters().allocate_gradients();
        const auto batches = batches_of(mesh.group(MeshAxis::dp));
        const Passes passes{mesh, rules, model, at::kCPU, /*checking=*/false, pipeline.get()};
        const auto losses = forward_backward(passes, batches, /*seed=*/9);
        const auto evaluated = forward_only(passes, batches);
        model.parameters().reduce_gradients(mesh);
        const double norm = model.parameters().squared_gradient_norm(mesh).item().toDouble();
        const std::scoped_lock lock(mutex);
        CHECK((result.loss == 0 || result.loss == losses.at(0).value));
        result.loss = losses.at(0).value;
        result.evaluation = evaluated.at(0).value;
        result.squared_norm = norm;
        for (const auto& parameter : model.parameters().all()) {
          for (const auto& piece : parameter.pieces) {
            put(result.values, piece, parameter.view(parameter.value.detach(), piece), true);
            const at::Tensor gradient = parameter.view(parameter.main_grad, piece);
            put(result.gradients, piece, gradient, !piece.stages.empty());
          }
        }
      },
      {.wrap = wrap}
  );
  return result;
}

inline void compare(const Result& one, const Result& other) {
  CHECK(other.loss == doctest::Approx(one.loss).epsilon(1e-12));
  CHECK(other.evaluation == doctest::Approx(one.evaluation).epsilon(1e-12));
  CHECK(other.squared_norm == doctest::Approx(one.squared_norm).epsilon(1e-11));
  REQUIRE(other.gradients.size() == one.gradients.size());
  for (const auto& [name, gradient] : one.gradients) {
    CAPTURE(name);
    CHECK(at::equal(other.values.at(name), one.values.at(name)));
    const double norm = gradient.norm().item().toDouble();
    CHECK(
        (other.gradients.at(name) - gradient).norm().item().toDouble() <=
        1e-12 * std::max(norm, 1e-3 * std::sqrt(one.squared_norm))
    );
  }
}

} // namespace mh::pipelined
