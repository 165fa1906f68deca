#include "core/recipe/conditions.hpp"
#include "core/recipe/resolve.hpp"

#include <string>

namespace mh {

namespace {

/// Of a run: its length, schedule, batch, evaluation and guards.
class RunContradictions : public Conditions {
public:
  using Conditions::Conditions;

  void run() {
    length();
    schedule_units();
    schedule_values();
    batch();
    check_layout_contradictions(*this);
    if (facts_.trains) {
      training_share();
      evaluation();
    }
    rewinds("guards.nan");
    rewinds("guards.spike");
  }

private:
  void length() {
    if (!sound({"train.iters", "train.samples"})) {
      return;
    }
    if (has("train.iters") && has("train.samples")) {
      report(
          {"train.samples", "train.iters"},
          "train.iters and train.samples are both given, expected one of them",
          "a run is as long as its optimizer steps (iters) or its sequences (samples) say, not both"
      );
    } else if (!has("train.iters") && !has("train.samples")) {
      const Value* train = tree_.find("train");
      problems_.push_back(
          {train->origin,
           "train.iters",
           "train.iters is missing, expected the number of optimizer steps (or train.samples)",
           "",
           ""}
      );
    } else if (sound({"batch.global"}) && has("train.samples") && integer("train.samples") < integer("batch.global")) {
      report(
          {"train.samples", "batch.global"},
          "train.samples " + text(integer("train.samples")) +
              " is fewer than one batch of batch.global " + text(integer("batch.global"))
      );
    }
  }

  void schedule_units() {
    struct Pair {
      const char* iters;
      const char* samples;
      const char* what;
    };

    for (const Pair& pair :
         {Pair{"lr_schedule.warmup_iters", "lr_schedule.warmup_samples", "warm-up"},
          Pair{"lr_schedule.decay_iters", "lr_schedule.decay_samples", "decay"},
          Pair{"lr_schedule.cooldown_iters", "lr_schedule.cooldown_samples", "way down"}}) {
      if (!sound({pair.iters, pair.samples})) {
        continue;
      }
      const bool by_iters = integer(pair.iters) > 0;
      const bool by_samples = integer(pair.samples) > 0;
      if (by_iters && by_samples) {
        report(
            {pair.samples, pair.iters},
            std::string(pair.iters) + " and " + pair.samples +
                " are both given, expected one of them",
            std::string("the ") + pair.what +
                " is counted in optimizer steps or in sequences, not both"
        );
      } else if (by_samples && has("train.iters") && !has("train.samples")) {
        report(
            {pair.samples},
            std::string(pair.samples) + " counts sequences but train.iters counts optimizer steps",
            "give " + std::string(pair.iters) + ", or the run's length as train.samples"
        );
      } else if (by_iters && has("train.samples") && !has("train.iters")) {
        report(
            {pair.iters},
            std::string(pair.iters) + " counts optimizer steps but train.samples counts sequences",
            "give " + std::string(pair.samples) + ", or the run's length as train.iters"
        );
      }
    }
  }

  void schedule_values() {
    if (sound({"lr_schedule.min_lr", "optimizer.lr"}) &&
        number("lr_schedule.min_lr") > number("optimizer.lr")) {
      report(
          {"lr_schedule.min_lr", "optimizer.lr"},
          "lr_schedule.min_lr " + to_text(number("lr_schedule.min_lr")) +
              " is above optimizer.lr " + to_text(number("optimizer.lr")) +
              ", expected at most that",
          "the rate falls from optimizer.lr to lr_schedule.min_lr"
      );
    }

    struct Unit {
      const char* warmup;
      const char* decay;
      const char* run;
    };

    for (const Unit& unit :
         {Unit{"lr_schedule.warmup_iters", "lr_schedule.decay_iters", "train.iters"},
          Unit{"lr_schedule.warmup_samples", "lr_schedule.decay_samples", "train.samples"}}) {
      if (!sound({unit.warmup, unit.decay, unit.run})) {
        continue;
      }
      const char* end = integer(unit.decay) > 0 ? unit.decay : unit.run;
      if (integer(unit.warmup) > 0 && integer(end) > 0 && integer(unit.warmup) >= integer(end)) {
        report(
            {unit.warmup, end},
            std::string(unit.warmup) + " " + text(integer(unit.warmup)) + " is not below " + end +
                " " + text(integer(end)),
            "the rate rises during warm-up and decays from there to the end"
        );
      }
    }
  }

  void batch() {
    if (!sound(
            {"batch.global",
             "batch.micro",
             "parallel.data",
             "parallel.tensor",
             "parallel.pipeline",
             "parallel.context"}
        )) {
      return;
    }
    const int64_t global = integer("batch.global");
    const int64_t micro = integer("batch.micro");
    const int64_t copies = data_degree();
    if (global % (micro * copies) != 0) {
      report(
          {"batch.global", "batch.micro", "parallel.data"},
          "batch.global " + text(global) + " is not divisible by batch.micro " + text(micro) +
              " times data-parallel degree " + text(copies),
          "nearest: " + nearest_multiples(global, micro * copies)
      );
      return;
    }
    for (const char* key : {"batch.rampup_start", "batch.rampup_increment"}) {
      if (integer(key) % (micro * copies) != 0) {
        report(
            {key},
            std::string(key) + " " + text(integer(key)) + " is not divisible by batch.micro " +
                text(micro) + " times data-parallel degree " + text(copies),
            "nearest: " + nearest_multiples(integer(key), micro * copies)
        );
      }
    }
    const int64_t microbatches = global / (micro * copies);
    const int64_t stages = integer("parallel.pipeline");
    if (word("parallel.schedule").ends_with("1f1b") && integer("parallel.virtual_stages") > 1 &&
        stages > 1 && microbatches % stages != 0) {
      report(
          {"batch.global", "parallel.virtual_stages", "parallel.pipeline"},
          text(microbatches) + " microbatches are not divisible by parallel.pipeline " +
              text(stages) + ", which parallel.virtual_stages above 1 needs",
          "batch.global / (batch.micro x data-parallel degree) is the number of microbatches; "
          "nearest: batch.global " +
              nearest_multiples(global, micro * copies * stages)
      );
    }
  }

  void training_share() {
    const Value* split = tree_.find_path("data.split");
    if (sound({"data.split"}) && split && split->as_array().front().as_number() == 0) {
      problems_.push_back(
          {split->origin,
           "data.split",
           "data.split: the training share is 0, expected more: there is nothing to train on",
           "",
           ""}
      );
    }
  }

  void evaluation() {
    const Value* split = tree_.find_path("data.split");
    if (!sound({"train.eval_interval", "data.split"}) || integer("train.eval_interval") == 0 ||
        !split || split->as_array().size() != 3) {
      return;
    }
    if (split->as_array()[1].as_number() == 0) {
      report(
          {"train.eval_interval", "data.split"},
          "train.eval_interval asks for evaluation but the validation share of data.split " +
              to_text(*split) + " is 0",
          "give data.split a second share above 0, or set train.eval_interval to 0"
      );
    }
  }

  void rewinds(const char* guard) {
    if (sound({guard, "checkpoint.interval"}) && word(guard) == "rewind" &&
        integer("checkpoint.interval") == 0) {
      report(
          {guard, "checkpoint.interval"},
          std::string(guard) + " rewinds to a checkpoint, but checkpoint.interval 0 writes none",
          "set checkpoint.interval to the steps that a rewind may lose"
      );
    }
  }
};

} // namespace

void check_contradictions(const Value& tree, const Facts& facts, std::vector<Problem>& problems) {
  RunContradictions(tree, facts, problems).run();
}

} // namespace mh
