#include "core/plan/short_stages.hpp"

#include "core/mesh/layout.hpp"
#include "core/session/session.hpp"
#include "megahost/error.hpp"
#include "megahost/recompute.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <type_traits>
#include <utility>

namespace mh {

namespace {

using Op = Instruction::Op;

constexpr int64_t kMicrobatches = 3; // see StageRecord

/// Layers of short stages; one stage has one more. A single one has no other next to it, whose
/// weights are fetched ahead or whose activations go while its own come.
constexpr int64_t kShortest = 2;

/// The recipe with stages of so many layers, one chunk each.
Recipe shortened(const PlanTarget& target, int64_t stages, int64_t layers) {
  Recipe recipe = target.recipe;
  auto& parallel = recipe.parallel;
  const int64_t data = parallel.data_degree(target.world);
  parallel.data = data;
  parallel.pipeline = stages;
  parallel.virtual_stages = 1;
  for (const auto* strategy : target.host.known(Kind::strategy)) {
    if (const Field* field = strategy->schema.find(Mechanism::schedule)) {
      parallel.schedule = plugin_named(field->default_value); // takes one chunk a stage
    }
  }
  parallel.pipeline_layout = "even";
  recipe.model.options.as_table().set("layers", stages * layers);
  recipe.batch = {};
  recipe.batch.micro = target.recipe.batch.micro;
  recipe.batch.global = recipe.batch.micro * data * kMicrobatches;
  return recipe;
}

void add(PassRecord& sum, const PassRecord& pass, int64_t weight) {
  sum.net += weight * pass.net;
  sum.peak += weight * pass.peak;
  sum.working += weight * pass.working;
  sum.sent += weight * pass.sent;
  sum.flops += static_cast<double>(weight) * pass.flops;
}

/// The number on the line through a plan with fewer and one with more microbatches.
template <class Number>
Number on_line(Number fewer, Number more, double at) {
  const double value = static_cast<double>(fewer) + at * static_cast<double>(more - fewer);
  if constexpr (std::is_integral_v<Number>) {
    return std::llround(value);
  }
  return static_cast<Number>(value);
}

/// `at`: 0 is `fewer`, 1 is `more`.
Plan longer(const Plan& fewer, Plan more, double at) {
  const auto extend = [&](auto& value, const auto& from) { value = on_line(from, value, at); };
  for (size_t s = 0; s < more.stages.size(); ++s) {
    extend(more.stages[s].activations, fewer.stages[s].activations);
    extend(more.stages[s].busy, fewer.stages[s].busy);
  }
  auto& step = more.step;
  const auto& from = fewer.step;
  extend(step.products, from.products);
  extend(step.attention, from.attention);
  extend(step.memory, from.memory);
  for (auto& [axis, seconds] : step.exposed) {
    const auto found = from.exposed.find(axis);
    extend(seconds, found == from.exposed.end() ? 0.0 : found->second);
  }
  extend(step.bubble, from.bubble);
  extend(step.optimizer, from.optimizer);
  extend(step.total, from.total);
  extend(more.executed_flops, fewer.executed_flops);
  more.timeline = {};
  return more;
}

bool kept_alike(const Keep& a, const Keep& b) {
  return a.everything == b.everything && !a.joined && !b.joined && a.redo == b.redo;
}

} // namespace

PlannedSteps::PlannedSteps(const PlanTarget& base)
    : host_(base.host)
    , costs_(block_costs(base.recipe, base.host))
    , world_(base.world)
    , device_(base.device) {}

RecordedStep PlannedSteps::step(const Recipe& recipe, int64_t microbatches) {
  const auto& parallel = recipe.parallel;
  const std::string key = std::to_string(parallel.pipeline) + " " +
                          std::to_string(parallel.virtual_stages) + " " +
                          std::to_string(microbatches) + " " + parallel.schedule.use +
                          to_text(parallel.schedule.options) + " " + parallel.pipeline_layout;
  const std::lock_guard lock(mutex_);
  auto found = known_.find(key);
  if (found == known_.end()) {
    found =
        known_.emplace(key, planned_step({recipe, host_, world_, device_}, costs_, microbatches))
            .first;
  }
  RecordedStep step = found->second;
  step.shape = mesh_shape(recipe, world_);
  return step;
}

RecordedStep PlannedSteps::step(const Recipe& recipe) {
  return step(recipe, recipe.parallel.pipeline * recipe.parallel.virtual_stages);
}

bool PlannedSteps::alike(const Recipe& recipe) const {
  constexpr int64_t kTried = 8;
  bool measures = false; // the stage as it is
  const auto policy = host_.make<RecomputePolicy>(
      recipe.recompute,
      {.layers = kTried,
       .peak_memory =
           [&](const std::vector<Keep>&) {
             measures = true;
             return int64_t{0};
           }}
  );
  for (int64_t layer = 0; layer < kTried; ++layer) {
    measures = measures || !kept_alike(policy->keep(0), policy->keep(layer));
  }
  return !measures && recipe.model.options.find("layers") != nullptr &&
         std::all_of(costs_.begin() + 1, costs_.end() - 1, [&](double cost) {
           return cost == costs_[1];
         });
}

ShortPasses PlannedSteps::passes(const Recipe& recipe) {
  const RecordedStep few = step(recipe);
  const auto& list = few.lists.front();
  const bool splits = std::any_of(list.begin(), list.end(), [](const auto& one) {
    return one.op == Op::backward_input;
  });
  return splits ? ShortPasses::split : ShortPasses::whole;
}

int64_t PlannedSteps::microbatches(const Recipe& recipe) const {
  const int64_t samples = recipe.batch.micro * recipe.parallel.data_degree(world_);
  return std::max<int64_t>(1, recipe.batch.global / samples);
}

ShortStages::ShortStages(const PlanTarget& target, const Machine& machine, ShortPasses passes)
    : machine_(machine)
    , passes_(passes) {
  const int64_t pipeline = target.recipe.parallel.pipeline;
  const int64_t stages = pipeline > 1 ? 3 : 1;
  const int64_t microbatches = passes == ShortPasses::none ? 0 : kMicrobatches;
  std::vector<Instruction> kinds{{Op::backward, 0, 0}};
  if (passes == ShortPasses::split) {
    kinds.push_back({Op::backward_input, 0, 0});
  }
  RecordedStep step;
  const auto record = [&](int64_t all, int64_t layers, int64_t stage, int64_t passes_of) {
    const Recipe recipe = shortened(target, all, layers);
    PlanTarget one{recipe, target.host, target.world / pipeline * all, target.device};
    one.imbalance = target.imbalance;
    step.shape = mesh_shape(recipe, one.world);
    step.args = {.stages = all, .microbatches = kMicrobatches};
    step.lists = InstructionLists(static_cast<size_t>(all), kinds);
    step.layers = layers; // layers of each stage
    return std::make_unique<Short>(
        record_stage(one, stage, step, passes_of),
        machine,
        step.shape,
        scattered(target.recipe, machine)
    );
  };
  if (stages > 1) {
    whole_ = record(1, kShortest, 0, 0);
  }
  for (int64_t stage = 0; stage < stages; ++stage) {
    ends_.push_back(record(stages, kShortest, stage, microbatches));
  }
  tokens_ = step.tokens;
  flops_[0] = step.model_flops;
  parameters_[0] = step.parameters;
  longer_ = record(stages, kShortest + 1, stages / 2, microbatches);
  flops_[1] = step.model_flops;
  parameters_[1] = step.parameters;
}

/// Each further layer takes the difference between the two stages. Parts of chunks other than
/// embedding, layers and head count once a stage, and so do weights that embedding and head share.
std::vector<ShortStages::Share> ShortStages::shares(const RecordedStep& step, int64_t stage) const {
  std::vector<Share> all;
  bool embedding = false; // is in this chunk or one before it
  const auto chunks = static_cast<int32_t>(step.args.virtual_stages);
  for (int32_t c = 0; c < chunks; ++c) {
    const LayoutChunk chunk =
        step.layout.empty() ? LayoutChunk{true, step.layers, true}
                            : step.layout.at(static_cast<size_t>(step.args.chunk_of(stage, c)));
    const Short& ends = chunk.embedding ? *ends_.front() : chunk.head ? *ends_.back() : between();
    const auto layers = static_cast<double>(std::max<int64_t>(1, chunk.layers));
    const double share = static_cast<double>(kShortest) / layers;
    const double longer = static_cast<double>(kShortest + 1) / layers;
    all.push_back({&ends, 1, c, share});
    all.push_back({longer_.get(), chunk.layers - kShortest, c, longer});
    all.push_back({&between(), kShortest - chunk.layers, c, share});
    if (c > 0) {
      all.push_back({&between(), -kShortest - 1, c, share, Share::Of::closing});
      all.push_back({longer_.get(), kShortest, c, longer, Share::Of::closing});
    }
    embedding = embedding || chunk.embedding;
    if (c > 0 && chunk.head && embedding) {
      all.push_back({whole_.get(), 1, c, share, Share::Of::kept});
      all.push_back({ends_.front().get(), -1, c, share, Share::Of::kept});
      all.push_back({ends_.back().get(), -1, c, share, Share::Of::kept});
      all.push_back({&between(), 1, c, share, Share::Of::kept});
    }
  }
  return all;
}

/// One record for each distinct stage, and what it is made of.
void ShortStages::put_together(RecordedStep& step, std::vector<std::vector<Share>>& all) const {
  std::map<std::vector<std::pair<const Short*, int64_t>>, size_t> known;
  for (int64_t stage = 0; stage < step.args.stages; ++stage) {
    const auto parts = shares(step, stage);
    std::vector<std::pair<const Short*, int64_t>> signature;
    for (const auto& part : parts) {
      signature.emplace_back(part.from, part.weight);
    }
    const auto [found, fresh] = known.emplace(std::move(signature), step.records.size());
    step.record_of.push_back(found->second);
    if (!fresh) {
      continue;
    }
    StageRecord& sum = step.records.emplace_back();
    sum.stage = stage;
    for (const auto& part : parts) {
      const StageRecord& record = part.from->record;
      sum.parameters += part.weight * record.parameters;
      sum.gradients += part.weight * record.gradients;
      sum.state += part.weight * record.state;
      sum.own_masters = record.own_masters;
      sum.batches = record.batches / kMicrobatches * step.args.microbatches;
      if (part.of != Share::Of::kept) {
        add(sum.closing, record.closing, part.weight);
      }
      for (const auto& [key, pass] : record.passes) {
        if (part.of == Share::Of::all) {
          add(sum.passes[{key.op, part.chunk, key.place}], pass, part.weight);
        }
      }
    }
    all.push_back(parts);
  }
}

int64_t ShortStages::kept(const Recipe& recipe, PlannedSteps& steps) const {
  RecordedStep step = steps.step(recipe);
  std::vector<std::vector<Share>> all;
  put_together(step, all);
  int64_t most = 0;
  for (const auto& record : step.records) {
    most = std::max(most, record.kept());
  }
  return most + machine_.hardware.reserved(process_groups(step.shape), /*activations=*/0);
}

Plan ShortStages::plan(const Recipe& recipe, RecordedStep step) const {
  const double at = static_cast<double>(step.layers) / static_cast<double>(ends_.size()) -
                    static_cast<double>(kShortest);
  step.tokens = tokens_;
  step.model_flops = on_line(flops_[0], flops_[1], at);
  step.parameters = on_line(parameters_[0], parameters_[1], at);
  std::vector<std::vector<Share>> all;
  put_together(step, all);
  std::vector<TimedStage> timed;
  for (const auto& parts : all) {
    TimedStage& stage = timed.emplace_back();
    stage.chunks.resize(static_cast<size_t>(step.args.virtual_stages));
    for (const auto& part : parts) {
      const TimedStage::Part timed_part{
          &part.from->clock, static_cast<double>(part.weight), part.chunk, part.share};
      if (part.of != Share::Of::kept) {
        stage.closing.push_back(timed_part);
      }
      if (part.of == Share::Of::all) {
        stage.chunks.at(static_cast<size_t>(part.chunk)).push_back(timed_part);
      }
    }
  }
  return make_plan(step, timed, recipe, machine_);
}

/// From some microbatches on each one more takes as much as the one before: what many take lies on
/// the line through what some and some more take. Not where weights' passes fill bubbles: those are
/// shared among the step's passes.
Plan ShortStages::plan(const Recipe& recipe, PlannedSteps& steps) const {
  const int64_t all = steps.microbatches(recipe), stages = recipe.parallel.pipeline;
  const int64_t some = 3 * stages + all % stages, more = some + stages;
  if (all <= more || passes_ == ShortPasses::split) {
    return plan(recipe, steps.step(recipe, all));
  }
  Plan longest = longer(
      plan(recipe, steps.step(recipe, some)),
      plan(recipe, steps.step(recipe, more)),
      static_cast<double>(all - some) / static_cast<double>(stages)
  );
  longest.pipeline.microbatches = all;
  return longest;
}

Plan quick_plan(const PlanTarget& target, const Machine& machine, PlannedSteps& steps) {
  if (!steps.alike(target.recipe)) {
    return make_plan(record_step(target), target.recipe, machine);
  }
  return ShortStages(target, machine, steps.passes(target.recipe)).plan(target.recipe, steps);
}

} // namespace mh
