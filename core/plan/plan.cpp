#include "core/plan/plan.hpp"

#include "core/mesh/layout.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <utility>

namespace mh {

namespace {

void add(StepTime& sum, const PassTime& pass) {
  sum.products += pass.products;
  sum.attention += pass.attention;
  sum.memory += pass.memory;
  for (const auto& [axis, seconds] : pass.exposed) {
    sum.exposed[axis] += seconds;
  }
}

class Planner {
public:
  Planner(const RecordedStep& step, const std::vector<TimedStage>& stages, const Machine& machine)
      : step_(step)
      , stages_(stages) {
    for (const auto& stage : stages) {
      times_.push_back(stage.passes());
      transfer_ = std::max(transfer_, stage.transfer());
    }
    const auto& waits = machine.calibration.waits;
    if (std::find(waits.begin(), waits.end(), "pp") != waits.end()) {
      for (auto& times : times_) {
        for (auto& [key, pass] : times) {
          pass.exposed["pp"] += is_pass(key.op) ? transfer_ : 0;
        }
      }
      transfer_ = 0;
    }
  }

  void run(Plan& plan) {
    plan.timeline = simulate(step_.args, step_.lists, pass_times());
    const int64_t microbatches = step_.args.microbatches;
    double sums_over = 0, update = 0;
    size_t busiest = 0;
    std::vector<StepTime> work(plan.stages.size());
    std::vector<std::pair<PassTime, PassTime>> closings;
    for (size_t s = 0; s < plan.stages.size(); ++s) {
      for (const auto& one : step_.lists[s]) {
        if (is_pass(one.op)) {
          add(work[s], time(s, one));
        }
      }
      plan.stages[s].busy = work[s].products + work[s].attention + work[s].memory;
      for (const auto& [axis, seconds] : work[s].exposed) {
        plan.stages[s].busy += seconds;
      }
      busiest = plan.stages[s].busy > plan.stages[busiest].busy ? s : busiest;
      const auto& passes = plan.timeline.stages[s];
      const auto& [sums, closing] = closings.emplace_back(timed(s).close(passes, microbatches));
      sums_over = std::max(sums_over, (passes.empty() ? 0 : passes.back().end) + sums.total());
      update = std::max(update, closing.total());
    }
    plan.step = work[busiest];
    const auto& [sums, closing] = closings[busiest];
    add(plan.step, sums);
    for (const auto& [axis, seconds] : closing.exposed) {
      plan.step.exposed[axis] += seconds;
    }
    plan.step.optimizer = closing.compute();
    const PassTime late = timed(busiest).late(plan.timeline.stages[busiest], microbatches);
    add(plan.step, late);
    plan.step.total = sums_over + update + late.total();
    double known =
        plan.step.products + plan.step.attention + plan.step.memory + plan.step.optimizer;
    for (const auto& [axis, seconds] : plan.step.exposed) {
      known += seconds;
    }
    plan.step.bubble = std::max(0.0, plan.step.total - known);
  }

private:
  [[nodiscard]] const TimedStage& timed(size_t stage) const {
    return stages_[step_.record_of[stage]];
  }

  [[nodiscard]] const PassTime& time(size_t stage, const Instruction& one) const {
    const auto* pass =
        find_pass(times_[step_.record_of[stage]], PassKey::of(one, step_.args.microbatches));
    MH_ASSERT(pass != nullptr, "no pass was timed of " + to_string(one));
    return *pass;
  }

  [[nodiscard]] PassTimes pass_times() const {
    using Op = Instruction::Op;
    const auto chunks = static_cast<size_t>(step_.args.chunks());
    PassTimes times{std::vector(chunks, 0.0), std::vector(chunks, 0.0), std::vector(chunks, 0.0)};
    for (size_t s = 0; s < step_.lists.size(); ++s) {
      for (const auto& one : step_.lists[s]) {
        const auto chunk =
            static_cast<size_t>(step_.args.chunk_of(static_cast<int64_t>(s), one.chunk));
        if (!is_pass(one.op)) {
          continue;
        }
        double& known = one.op == Op::forward           ? times.forward[chunk]
                        : one.op == Op::backward_weight ? times.backward_weight[chunk]
                                                        : times.backward_input[chunk];
        if (known == 0 || one.microbatch < step_.args.microbatches - 1) {
          known = time(s, one).total();
        }
      }
    }
    times.transfer = transfer_;
    return times;
  }

  const RecordedStep& step_;
  const std::vector<TimedStage>& stages_; // by record
  double transfer_ = 0;                   // seconds between stages, which passes overlap
  std::vector<ByPass<PassTime>> times_;   // by record
};

double executed_flops(const RecordedStep& step) {
  double sum = 0;
  for (size_t s = 0; s < step.lists.size(); ++s) {
    for (const auto& one : step.lists[s]) {
      sum += step.stage(static_cast<int64_t>(s)).of(one, step.args.microbatches).flops;
    }
  }
  return sum * static_cast<double>(step.shape.world() / step.shape.pp);
}

std::string layers_of(const RecordedStep& step, int64_t stage, int64_t layers) {
  if (step.layout.empty()) {
    return "embed+" + std::to_string(layers) + "+head";
  }
  std::string text;
  for (int64_t local = 0; local < step.args.virtual_stages; ++local) {
    const auto& chunk = step.layout.at(static_cast<size_t>(step.args.chunk_of(stage, local)));
    text += std::string(text.empty() ? "" : ", ") + (chunk.embedding ? "embed+" : "") +
            std::to_string(chunk.layers) + (chunk.head ? "+head" : "");
  }
  return text;
}

} // namespace

double papers_flops(const Recipe& recipe, const Plan& plan) {
  const auto number = [&](const char* key) {
    const Value* value = recipe.model.options.find(key);
    return value != nullptr && value->is_number() ? value->as_number() : 0;
  };
  const double h = number("hidden"), l = number("layers"), v = number("vocab");
  const auto s = static_cast<double>(recipe.model.seq_length);
  const auto b = static_cast<double>(recipe.batch.global);
  const double passes = plan.recomputed ? 4 : 3;
  return 24 * passes * b * s * l * h * h * (1 + s / (6 * h)) + 6 * b * s * h * v;
}

Fit fit_of(int64_t bytes, int64_t capacity) {
  constexpr double kTight = 0.95;
  return capacity == 0                                                         ? Fit::unknown
         : bytes > capacity                                                    ? Fit::too_much
         : static_cast<double>(bytes) > kTight * static_cast<double>(capacity) ? Fit::tight
                                                                               : Fit::fits;
}

int64_t Plan::most() const {
  int64_t most = 0;
  for (const auto& stage : stages) {
    most = std::max(most, stage.total());
  }
  return most;
}

bool scattered(const Recipe& recipe, const Machine& machine) {
  return machine.calibration.scattered && !recipe.parallel.sequence;
}

Plan make_plan(const RecordedStep& step, const Recipe& recipe, const Machine& machine) {
  std::vector<StageClock> clocks;
  clocks.reserve(step.records.size());
  std::vector<TimedStage> stages;
  for (const auto& record : step.records) {
    clocks.emplace_back(record, machine, step.shape, scattered(recipe, machine));
    stages.push_back(TimedStage::whole(clocks.back(), step.args.virtual_stages));
  }
  return make_plan(step, stages, recipe, machine);
}

Plan make_plan(
    const RecordedStep& step,
    const std::vector<TimedStage>& stages,
    const Recipe& recipe,
    const Machine& machine
) {
  Plan plan;
  plan.shape = step.shape;
  plan.machine = machine;
  plan.host = step.device == at::kCPU;
  plan.pipeline = step.args;
  plan.precision = recipe.precision;
  plan.parameters = step.parameters;
  plan.recomputed = step.recomputed;
  plan.capacity = machine.hardware.memory();
  for (int64_t s = 0; s < step.args.stages; ++s) {
    const StageRecord& record = step.stage(s);
    StagePlan stage;
    stage.stage = s;
    stage.layers = layers_of(step, s, step.layers);
    stage.parameters = record.parameters;
    stage.gradients = record.gradients;
    stage.state = record.state;
    stage.own_masters = record.own_masters;
    const StageMemory memory = compose_memory(step, s);
    stage.activations = memory.activations + record.batches;
    stage.workspace = memory.working - memory.peak;
    stage.reserved =
        machine.hardware.reserved(process_groups(step.shape), stage.activations + stage.workspace);
    plan.stages.push_back(stage);
  }
  plan.peak_flops = machine.hardware.peak(
      recipe.precision == "fp32"  ? at::kFloat
      : recipe.precision == "fp8" ? at::kFloat8_e4m3fn
                                  : at::kBFloat16
  );
  plan.tokens = static_cast<double>(recipe.batch.global * step.tokens);
  plan.model_flops = step.model_flops * static_cast<double>(recipe.batch.global);
  plan.executed_flops = executed_flops(step);
  Planner(step, stages, machine).run(plan);
  return plan;
}

} // namespace mh
