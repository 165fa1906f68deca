#include "core/plan/plan.hpp"

#include "megahost/error.hpp"

#include <algorithm>
#include <memory>
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
  Planner(const RecordedStep& step, const Recipe& recipe, const Machine& machine)
      : step_(step)
      , machine_(machine)
      , scattered_(machine.calibration.scattered && !recipe.parallel.sequence) {
    for (const auto& record : step.records) {
      times_.push_back(time_passes(record, machine));
      transfer_ = std::max(transfer_, longest_transfer(record));
    }
    const auto& waits = machine.calibration.waits;
    if (std::find(waits.begin(), waits.end(), "pp") != waits.end()) {
      for (auto& times : times_) {
        for (auto& [key, pass] : times) {
          pass.exposed["pp"] += is_pass(std::get<0>(key)) ? transfer_ : 0;
        }
      }
      transfer_ = 0;
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
    const PassTime late = arrivals(busiest, plan.timeline);
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
  [[nodiscard]] const PassTime& time(int64_t stage, const Instruction& one) const {
    return time_of(
        times_[step_.record_of[static_cast<size_t>(stage)]], one, step_.args.microbatches
    );
  }

  [[nodiscard]] PassTimes pass_times() const {
    const auto chunks = static_cast<size_t>(step_.args.chunks());
    PassTimes times{std::vector(chunks, 0.0), std::vector(chunks, 0.0), std::vector(chunks, 0.0)};
    for (size_t s = 0; s < step_.lists.size(); ++s) {
      for (const auto& one : step_.lists[s]) {
        const auto chunk =
            static_cast<size_t>(step_.args.chunk_of(static_cast<int64_t>(s), one.chunk));
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
    times.transfer = transfer_;
    return times;
  }

  /// Of what one instruction sends.
  [[nodiscard]] double longest_transfer(const StageRecord& record) const {
    double longest = 0;
    for (const auto& [key, pass] : record.passes) {
      double seconds = 0;
      for (const auto& event : pass.events) {
        const auto& collective = record.collectives[event.collective];
        const bool sends = event.kind == PlanEvent::Kind::start && !is_pass(std::get<0>(key)) &&
                           std::string_view(collective.name) == "send";
        seconds += sends ? transfer_time(collective) : 0;
      }
      longest = std::max(longest, seconds);
    }
    return longest;
  }

  [[nodiscard]] double transfer_time(const PlannedCollective& transfer) const {
    const int64_t tp = step_.shape.tp;
    if (!scattered_ || tp == 1) {
      return collective_time(transfer, machine_);
    }
    SilentGroup beside{"tp", {}};
    for (int64_t rank = 0; rank < tp; ++rank) {
      beside.members.push_back(rank);
    }
    PlannedCollective part = transfer, gather = transfer;
    part.bytes = gather.bytes = transfer.bytes / tp;
    gather.name = "all-gather";
    gather.peer = -1;
    gather.group = std::make_shared<const SilentGroup>(beside);
    return collective_time(part, machine_) + collective_time(gather, machine_);
  }

  /// How much longer a stage's first passes take because values that the step before sent arrive
  /// beside them.
  [[nodiscard]] PassTime arrivals(size_t stage, const Timeline& timeline) const {
    const StageRecord& record = step_.stage(static_cast<int64_t>(stage));
    std::map<size_t, double> over; // since the step began
    std::map<std::string, double> free;
    for (const size_t number : record.arriving) {
      const auto& collective = record.collectives[number];
      double& last = free[collective.group->axis];
      last += collective_time(collective, machine_);
      over[number] = last;
    }
    PassTime late;
    for (const auto& timed : timeline.stages[stage]) {
      if (over.empty() || timed.what.op != Op::forward || timed.what.microbatch != 0) {
        continue;
      }
      std::map<size_t, double> under_way;
      for (const auto& [number, end] : over) {
        under_way[number] = end - timed.begin - late.total();
      }
      const auto& events = record.of(timed.what, step_.args.microbatches).events;
      const PassTime& alone = time(static_cast<int64_t>(stage), timed.what);
      const PassTime beside = pass_time(events, record.collectives, machine_, under_way);
      late.products += beside.products - alone.products;
      late.attention += beside.attention - alone.attention;
      late.memory += beside.memory - alone.memory;
      for (const auto& [axis, seconds] : beside.exposed) {
        late.exposed[axis] += seconds;
      }
      for (const auto& [axis, seconds] : alone.exposed) {
        late.exposed[axis] -= seconds;
      }
    }
    return late;
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

  const RecordedStep& step_;
  const Machine& machine_;
  bool scattered_;
  double transfer_ = 0;      // seconds between stages, beside which passes go on
  std::vector<Times> times_; // by record
  std::vector<std::pair<PassTime, PassTime>> closings_;
};

double executed_flops(const RecordedStep& step) {
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

double papers_flops(const Recipe& recipe) {
  const auto number = [&](const char* key) {
    const Value* value = recipe.model.options.find(key);
    return value != nullptr && value->is_number() ? value->as_number() : 0;
  };
  const double h = number("hidden"), l = number("layers"), v = number("vocab");
  const auto s = static_cast<double>(recipe.model.seq_length);
  const auto b = static_cast<double>(recipe.batch.global);
  const double passes = recipe.recompute.use == "full" ? 4 : 3;
  return 24 * passes * b * s * l * h * h * (1 + s / (6 * h)) + 6 * b * s * h * v;
}

int64_t Plan::most() const {
  int64_t most = 0;
  for (const auto& stage : stages) {
    most = std::max(most, stage.total());
  }
  return most;
}

Plan make_plan(const RecordedStep& step, const Recipe& recipe, const Machine& machine) {
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
    stage.activations = compose_memory(step, s).activations + record.batches;
    stage.workspace = reserved + (machine.hardware.device == "cpu" ? 0 : record.workspace);
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
  Planner(step, recipe, machine).run(plan);
  return plan;
}

} // namespace mh
