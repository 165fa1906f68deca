#pragma once
// A model on ranks as threads, through a pipeline, with everything that is compared.

#include "core/mesh/threads.hpp"
#include "core/step/stages.hpp"
#include "core/step/step.hpp"
#include "megahost/gradients.hpp"
#include "megahost/model.hpp"
#include "megahost/pipeline_layout.hpp"
#include "plugins/parallel/pipeline/orders.hpp"
#include "tests/dist/whole.hpp"

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace mh::pipelined {

inline constexpr int64_t kSeq = 8, kBatch = 2, kMicrobatches = 8;

using MakeOrder = pipeline::Order (*)(const pipeline::Args&);

class Ordered : public PipelineSchedule {
public:
  Ordered(const Args& args, MakeOrder make)
      : order_(make(args))
      , lists_(pipeline::lists_of(order_, args)) {}

  [[nodiscard]] std::vector<Instruction> instructions(int64_t stage) const override {
    return lists_[static_cast<size_t>(stage)];
  }

  [[nodiscard]] int64_t most_live(int64_t stage) const override {
    return order_.most_live[static_cast<size_t>(stage)];
  }

  [[nodiscard]] ChunkOrder order() const override { return order_.chunks; }

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

inline std::vector<Batch> batches_of(const Group& dp) {
  std::vector<Batch> batches;
  for (int64_t m = 0; m < kMicrobatches; ++m) {
    batches.push_back(batch_of(dp, kSeq, kBatch, m));
  }
  return batches;
}

inline Whole
run(const Architecture& architecture, const Layout& layout, const WrapBackend& wrap = nullptr) {
  Whole result;
  std::mutex mutex;
  run_ranks(
      layout.shape,
      [&](const Mesh& mesh) {
        const Rules rules = rules_of(layout.sequence);
        const FullRecompute full;
        std::vector<ModelChunk> chunks;
        std::unique_ptr<Pipeline> pipeline;
        if (!layout.chunks.empty()) {
          const auto written = parse_layout(layout.chunks).value();
          const PipelineSchedule::Args sizes{
              .stages = layout.shape.pp,
              .virtual_stages = static_cast<int64_t>(written.size()) / layout.shape.pp,
              .microbatches = kMicrobatches};
          pipeline = std::make_unique<Pipeline>(
              [&](const PipelineSchedule::Args& args) {
                return std::make_unique<Ordered>(args, layout.order);
              },
              sizes
          );
          chunks = chunks_of(written, pipeline->args());
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
        Gradients gradients(model.parameters(), mesh);
        const auto batches = batches_of(mesh.group(MeshAxis::dp));
        const Passes passes{mesh, rules, model, at::kCPU, /*checking=*/false, pipeline.get()};
        gradients.begin(std::ssize(batches));
        const auto losses = forward_backward(passes, batches, /*seed=*/9);
        const auto evaluated = forward_only(passes, batches);
        gradients.finish();
        const double norm = gradients.squared_norm().item().toDouble();
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

} // namespace mh::pipelined
