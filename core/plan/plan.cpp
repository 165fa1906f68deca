#include "core/plan/plan.hpp"

#include "megahost/error.hpp"

#include <algorithm>
#include <utility>

namespace mh {

namespace {

using Op = Instruction::Op;
using Place = StageRecord::Place;
using Times = std::map<std::tuple<Op, int32_t, Place>, PassTime>;

/// Every recorded pass of a stage, timed.
Times time_passes(const StageRecord& record, const Machine& machine) {
  Times times;
  for (const auto& [key, pass] : record.passes) {
    times.emplace(key, pass_time(pass.events, record.collectives, machine));
  }
  return times;
}

const PassTime& time_of(const Times& times, const Instruction& one, int64_t microbatches) {
  const Place place = one.microbatch == microbatches - 1 ? Place::last
                      : one.microbatch == 0              ? Place::first
                                                         : Place::middle;
  for (const Place any : {place, Place::middle, Place::last}) {
    const auto found = times.find({one.op, one.chunk, any});
    if (found != times.end()) {
      return found->second;
    }
  }
  throw InternalError("no pass was timed of " + to_string(one));
}

void add(StepTime& sum, const PassTime& pass) {
  sum.products += pass.products;
  sum.attention += pass.attention;
  sum.memory += pass.memory;
  for (const auto& [axis, seconds] : pass.exposed) {
    sum.exposed[axis] += seconds;
  }
}

double flops_of(const std::vector<PlanEvent>& events) {
  double sum = 0;
  for (const auto& event : events) {
    sum += event.kind == PlanEvent::Kind::memory ? 0 : event.flops;
  }
  return sum;
}

class Planner {
public:
  Planner(const StepRecord& step, const Machine& machine)
      : step_(step)
      , machine_(machine) {
    for (const auto& record : step.records) {
      times_.push_back(time_passes(record, machine));
    }
  }

  void run(Plan& plan) {
    plan.timeline = simulate(step_.args, step_.lists, pass_times());
    double sums_over = 0, update = 0;
    size_t busiest = 0;
    std::vector<StepTime> work(plan.stages.size());
    for (size_t s = 0; s < plan.stages.size(); ++s) {
      const auto stage = static_cast<int64_t>(s);
      for (const auto& one : step_.lists[s]) {
        if (is_pass(one.op)) {
          add(work[s], time(stage, one));
        }
      }
      plan.stages[s].busy = work[s].products + work[s].attention + work[s].memory;
      for (const auto& [axis, seconds] : work[s].exposed) {
        plan.stages[s].busy += seconds;
      }
      busiest = plan.stages[s].busy > plan.stages[busiest].busy ? s : busiest;
      const auto [sums, closing] = close(stage, plan.timeline);
      sums_over = std::max(sums_over, end_of(plan.timeline, s) + sums.total());
      update = std::max(update, closing.total());
      closings_.emplace_back(sums, closing);
    }
    plan.step = work[busiest];
    const auto& [sums, closing] = closings_[busiest];
    add(plan.step, sums);
    for (const auto& [axis, seconds] : closing.exposed) {
      plan.step.exposed[axis] += seconds;
    }
    plan.step.optimizer = closing.compute();
    plan.step.total = sums_over + update;
    double known =
        plan.step.products + plan.step.attention + plan.step.memory + plan.step.optimizer;
    for (const auto& [axis, seconds] : plan.step.exposed) {
      known += seconds;
    }
    plan.step.bubble = std::max(0.0, plan.step.total - known);
  }

private:
  [[nodiscard]] const PassTime& time(int64_t stage, const Instruction& one) const {
    return time_of(
        times_[step_.record_of[static_cast<size_t>(stage)]], one, step_.args.microbatches
    );
  }

  [[nodiscard]] PassTimes pass_times() const {
    const auto chunks = static_cast<size_t>(step_.args.stages * step_.args.virtual_stages);
    PassTimes times{std::vector(chunks, 0.0), std::vector(chunks, 0.0), std::vector(chunks, 0.0)};
    for (size_t s = 0; s < step_.lists.size(); ++s) {
      for (const auto& one : step_.lists[s]) {
        const auto chunk = static_cast<size_t>(one.chunk) * step_.lists.size() + s;
        if (!is_pass(one.op)) {
          continue;
        }
        const double seconds = time(static_cast<int64_t>(s), one).total();
        double& known = one.op == Op::forward           ? times.forward[chunk]
                        : one.op == Op::backward_weight ? times.backward_weight[chunk]
                                                        : times.backward_input[chunk];
        known = known == 0 || one.microbatch < step_.args.microbatches - 1 ? seconds : known;
      }
    }
    for (const auto& record : step_.records) {
      for (const auto& [key, pass] : record.passes) {
        double seconds = 0; // of what one instruction sends
        for (const auto& event : pass.events) {
          const auto& collective = record.collectives[event.collective];
          const bool sends = event.kind == PlanEvent::Kind::start && !is_pass(std::get<0>(key)) &&
                             std::string_view(collective.name) == "send";
          seconds += sends ? collective_time(collective, machine_) : 0;
        }
        times.transfer = std::max(times.transfer, seconds);
      }
    }
    return times;
  }

  static double end_of(const Timeline& timeline, size_t stage) {
    return timeline.stages[stage].empty() ? 0 : timeline.stages[stage].back().end;
  }

  /// What follows the last pass: the rest of the gradients' sums and the norm; the update.
  [[nodiscard]] std::pair<PassTime, PassTime> close(int64_t stage, const Timeline& timeline) const {
    const StageRecord& record = step_.stage(stage);
    const double end = end_of(timeline, static_cast<size_t>(stage));
    std::map<size_t, double> under_way;
    std::map<std::string, double> free;
    for (const auto& timed : timeline.stages[static_cast<size_t>(stage)]) {
      if (timed.what.microbatch != step_.args.microbatches - 1) {
        continue;
      }
      for (const auto& [number, begin] : time(stage, timed.what).outstanding) {
        const auto& collective = record.collectives[number];
        double& last = free[collective.group->axis];
        last = std::max(last, timed.begin + begin) + collective_time(collective, machine_);
        under_way[number] = last - end;
      }
    }
    const std::span<const PlanEvent> events(record.closing.events);
    const auto sums = events.first(record.optimizer_event);
    const auto update = events.subspan(record.optimizer_event);
    return {
        pass_time(sums, record.collectives, machine_, under_way),
        pass_time(update, record.collectives, machine_)};
  }

  const StepRecord& step_;
  const Machine& machine_;
  std::vector<Times> times_; // by record
  std::vector<std::pair<PassTime, PassTime>> closings_;
};

double executed_flops(const StepRecord& step) {
  double sum = 0;
  for (size_t s = 0; s < step.lists.size(); ++s) {
    const StageRecord& record = step.stage(static_cast<int64_t>(s));
    std::map<const PassRecord*, double> flops;
    for (const auto& one : step.lists[s]) {
      const PassRecord& pass = record.of(one, step.args.microbatches);
      const auto [found, fresh] = flops.emplace(&pass, 0.0);
      if (fresh) {
        found->second = flops_of(pass.events);
      }
      sum += found->second;
    }
  }
  return sum * static_cast<double>(step.shape.world() / step.shape.pp);
}

std::string layers_of(const StepRecord& step, int64_t stage, int64_t layers) {
  if (step.layout.empty()) {
    return "embed+" + std::to_string(layers) + "+head";
  }
  std::string text;
  for (size_t c = static_cast<size_t>(stage); c < step.layout.size();
       c += static_cast<size_t>(step.args.stages)) {
    const auto& chunk = step.layout[c];
    text += std::string(text.empty() ? "" : ", ") + (chunk.embedding ? "embed+" : "") +
            std::to_string(chunk.layers) + (chunk.head ? "+head" : "");
  }
  return text;
}

} // namespace

int64_t Plan::most() const {
  int64_t most = 0;
  for (const auto& stage : stages) {
    most = std::max(most, stage.total());
  }
  return most;
}

Plan make_plan(const StepRecord& step, const Recipe& recipe, const Machine& machine) {
  Plan plan;
  plan.shape = step.shape;
  plan.machine = machine;
  plan.pipeline = step.args;
  plan.precision = recipe.precision;
  plan.notes = step.notes;
  plan.parameters = step.parameters;
  plan.capacity = static_cast<int64_t>(machine.hardware.memory_gib * 1073741824.0);
  const auto reserved = static_cast<int64_t>(machine.hardware.reserved_gib * 1073741824.0);
  for (int64_t s = 0; s < step.args.stages; ++s) {
    const StageRecord& record = step.stage(s);
    StagePlan stage;
    stage.stage = s;
    stage.layers = layers_of(step, s, step.layers);
    stage.parameters = record.parameters;
    stage.gradients = record.gradients;
    stage.state = record.state;
    stage.activations = compose_memory(step, s).activations;
    stage.workspace = reserved;
    if (machine.hardware.device == "cpu") { // all of the step's, and the next step's behind them
      stage.activations += 2 * record.batch * step.args.microbatches;
    } else {
      stage.workspace += record.workspace;
    }
    plan.stages.push_back(stage);
  }
  plan.peak_flops = machine.hardware.peak(
      recipe.precision == "fp32"  ? at::kFloat
      : recipe.precision == "fp8" ? at::kFloat8_e4m3fn
                                  : at::kBFloat16
  );
  plan.tokens = static_cast<double>(recipe.batch.global * recipe.model.seq_length);
  plan.model_flops = step.model_flops * plan.tokens;
  plan.executed_flops = executed_flops(step);
  Planner(step, machine).run(plan);
  return plan;
}

} // namespace mh
