#pragma once
/// The pipeline that a recipe asks for: what each chunk holds of the model, and the schedule.

#include "core/step/pipeline.hpp"
#include "megahost/architecture.hpp"
#include "megahost/builder.hpp"
#include "megahost/host.hpp"
#include "megahost/pipeline_layout.hpp"
#include "megahost/recipe.hpp"
#include "megahost/recompute.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace mh {

/// FLOPs of each block's forward pass for one token: embedding, layers, head.
[[nodiscard]] std::vector<double> block_costs(const Architecture& architecture, int64_t seq_length);

/// The contents of each chunk of the recipe's pipeline; `costs` are those of the blocks.
///
/// Throws:  mh::Error if the layers do not fit the chunks
[[nodiscard]] std::vector<LayoutChunk>
stage_layout(const Recipe& recipe, const std::vector<double>& costs);

/// The same, as a model is built of it.
[[nodiscard]] std::vector<ModelChunk>
chunks_of(const std::vector<LayoutChunk>& layout, const PipelineSchedule::Args& args);

/// Layers that the chunks of `stage` hold.
[[nodiscard]] int64_t stage_layers(
    const std::vector<LayoutChunk>& layout, const PipelineSchedule::Args& args, int64_t stage
);

/// The activations that the blocks of a stage of so many layers save.
[[nodiscard]] std::vector<Keep> kept_by(const RecomputePolicy& policy, int64_t layers);

/// The recipe's schedule over its stages, for steps of so many microbatches. The plugins that it
/// needs are opened.
[[nodiscard]] std::unique_ptr<Pipeline>
make_pipeline(const Recipe& recipe, Host& host, int64_t microbatches);

} // namespace mh
