#include "core/step/stages.hpp"

#include "core/model/outline.hpp"
#include "core/model/plugin_call.hpp"
#include "core/step/batches.hpp"
#include "megahost/error.hpp"

#include <algorithm>

namespace mh {

std::vector<double> block_costs(const Architecture& architecture, int64_t seq_length) {
  const Outline outline(architecture, {.seq = seq_length, .microbatch = 1});
  const BatchLayout sample{.seq = seq_length, .sequences = architecture.sequences()};
  std::vector<double> costs;
  for (const auto& part : outline.parts()) {
    costs.push_back(part.flops.total() / static_cast<double>(sample.tokens_per_sample()));
  }
  if (std::all_of(costs.begin(), costs.end(), [](double cost) { return cost == 0; })) {
    std::fill(costs.begin() + 1, costs.end() - 1, 1.0); // nothing is known: by number
  }
  return costs;
}

std::vector<LayoutChunk> stage_layout(const Recipe& recipe, const std::vector<double>& costs) {
  const auto& parallel = recipe.parallel;
  const auto layers = static_cast<int64_t>(costs.size()) - 2;
  const int64_t chunks = parallel.pipeline * parallel.virtual_stages;
  const std::string stages = "parallel." + parallel.word(MeshAxis::pp);
  const auto refuse = [&](const std::string& why, const std::string& hint) {
    throw Error(
        stages + " " + std::to_string(parallel.pipeline) +
            (parallel.virtual_stages > 1
                 ? " times virtual_stages " + std::to_string(parallel.virtual_stages)
                 : "") +
            (parallel.pipeline_layout != "balanced"
                 ? " with pipeline_layout \"" + parallel.pipeline_layout + "\""
                 : "") +
            " does not fit the model's " + std::to_string(layers) + " layers: " + why,
        hint
    );
  };
  if (const auto written = parse_layout(parallel.pipeline_layout)) {
    int64_t found = 0;
    for (const auto& chunk : *written) {
      found += chunk.layers;
    }
    if (found != layers || static_cast<int64_t>(written->size()) != chunks) {
      refuse(
          "it has " + std::to_string(found) + " layers in " + std::to_string(written->size()) +
              " chunks",
          "write a layout of all layers, or \"balanced\""
      );
    }
    return *written;
  }
  if (layers < chunks) {
    refuse(
        "each chunk needs at least one",
        "lower " + stages + (parallel.virtual_stages > 1 ? " or virtual_stages" : "")
    );
  }
  if (parallel.pipeline_layout == "even") {
    if (layers % chunks != 0) {
      refuse("they do not divide evenly", "set parallel.pipeline_layout = \"balanced\"");
    }
    return even_layout(layers, chunks);
  }
  return balanced_layout(costs, chunks);
}

std::vector<ModelChunk>
chunks_of(const std::vector<LayoutChunk>& layout, const PipelineSchedule::Args& args) {
  std::vector<ModelChunk> chunks(layout.size());
  int64_t number = 0, first = 0;
  for (const auto& chunk : layout) {
    const int64_t place = number / args.stages * args.stages + args.stage_of(number);
    chunks.at(static_cast<size_t>(place)) = {first, chunk.layers, chunk.embedding, chunk.head};
    first += chunk.layers;
    ++number;
  }
  return chunks;
}

int64_t stage_layers(
    const std::vector<LayoutChunk>& layout, const PipelineSchedule::Args& args, int64_t stage
) {
  int64_t layers = 0;
  for (int64_t local = 0; local < args.virtual_stages; ++local) {
    layers += layout.at(static_cast<size_t>(args.chunk_of(stage, local))).layers;
  }
  return layers;
}

std::vector<Keep> kept_by(const RecomputePolicy& policy, int64_t layers) {
  std::vector<Keep> keep;
  for (int64_t layer = 0; layer < layers; ++layer) {
    keep.push_back(in_plugin(policy, "keep", [&] { return policy.keep(layer); }));
  }
  return keep;
}

std::unique_ptr<Pipeline> make_pipeline(const Recipe& recipe, Host& host, int64_t microbatches) {
  const auto& parallel = recipe.parallel;
  host.known(Kind::strategy); // that of pipelines offers most schedules
  const auto make = [&host, schedule = parallel.schedule](const PipelineSchedule::Args& args) {
    return host.make<PipelineSchedule>(schedule, args);
  };
  const PipelineSchedule::Args args{
      .stages = parallel.pipeline,
      .virtual_stages = parallel.virtual_stages,
      .microbatches = microbatches};
  return std::make_unique<Pipeline>(make, args);
}

} // namespace mh
