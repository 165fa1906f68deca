#include "core/schema/sections.hpp"

#include <string>

namespace mh {

const Fields<Recipe::Batch>& batch_fields() {
  using Batch = Recipe::Batch;
  static const Fields<Batch> fields = [] {
    Fields<Batch> f;
    f.add("global", &Batch::global, "sequences per optimizer step").at_least(1).unit("sequences");
    f.add("micro", &Batch::micro, "sequences per forward pass of one rank")
        .at_least(1)
        .may_change()
        .unit("sequences");
    f.add(
         "rampup_start",
         &Batch::rampup_start,
         "sequences of the first step, where the batch grows to global; absent: it does not"
    )
        .at_least(1)
        .unit("sequences");
    f.add("rampup_increment", &Batch::rampup_increment, "sequences that it grows by at a time")
        .at_least(1)
        .unit("sequences");
    f.add("rampup_samples", &Batch::rampup_samples, "sequences after which it is global")
        .at_least(1)
        .unit("sequences");
    f.check("rampup_start", [](const Batch& b) -> std::string {
      if (b.rampup_start.has_value() != b.rampup_increment.has_value() ||
          b.rampup_start.has_value() != b.rampup_samples.has_value()) {
        return "a batch grows by rampup_start, rampup_increment and rampup_samples: give all three";
      }
      if (b.rampup_start && *b.rampup_start > b.global) {
        return std::to_string(*b.rampup_start) + " is above batch.global " +
               std::to_string(b.global) + ", to which the batch grows";
      }
      if (b.rampup_start && (b.global - *b.rampup_start) % *b.rampup_increment != 0) {
        return "from " + std::to_string(*b.rampup_start) + " to batch.global " +
               std::to_string(b.global) + " is no multiple of rampup_increment " +
               std::to_string(*b.rampup_increment);
      }
      return "";
    });
    return f;
  }();
  return fields;
}

const Fields<Recipe::Train>& train_fields() {
  using Train = Recipe::Train;
  static const Fields<Train> fields = [] {
    Fields<Train> f;
    f.add("iters", &Train::iters, "length of the run in optimizer steps").at_least(1).unit("steps");
    f.add("samples", &Train::samples, "length of the run in sequences, instead of iters")
        .at_least(1)
        .unit("sequences");
    f.add("eval_interval", &Train::eval_interval, "steps between evaluations; 0 never evaluates")
        .at_least(0)
        .unit("steps");
    f.add("eval_iters", &Train::eval_iters, "global batches per evaluation").at_least(1);
    f.add("seed", &Train::seed, "seed of initial values, dropout and the order of samples")
        .at_least(0)
        .must_stay();
    f.add("exit_minutes", &Train::exit_minutes, "save and stop after this time")
        .above(0)
        .unit("minutes");
    f.add(
         "exit_iters",
         &Train::exit_iters,
         "save and stop after this step; schedules keep their length"
    )
        .at_least(1)
        .unit("steps");
    f.add(
        "deterministic",
        &Train::deterministic,
        "only operations that give the same bits each time; others are refused"
    );
    return f;
  }();
  return fields;
}

const Fields<Recipe::Optimizer>& optimizer_fields() {
  using Optimizer = Recipe::Optimizer;
  static const Fields<Optimizer> fields = [] {
    Fields<Optimizer> f;
    f.add("use", &Optimizer::use, "optimizer plugin");
    f.add("lr", &Optimizer::lr, "learning rate, the schedule's highest").at_least(0).may_change();
    f.add(
         "weight_decay",
         &Optimizer::weight_decay,
         "weight decay of matrices; norms and biases have none"
    )
        .at_least(0)
        .may_change();
    f.add(
         "weight_decay_schedule",
         &Optimizer::weight_decay_schedule,
         "how weight decay goes from weight_decay_start to weight_decay over the run"
    )
        .one_of({"constant", "linear", "cosine"})
        .may_change();
    f.add(
         "weight_decay_start",
         &Optimizer::weight_decay_start,
         "weight decay of the first step, unless constant; 0 if absent"
    )
        .at_least(0)
        .may_change();
    f.add("decay_vectors", &Optimizer::decay_vectors, "decay norms and biases, too");
    f.add("clip_grad", &Optimizer::clip_grad, "largest global gradient norm; 0 does not clip")
        .at_least(0);
    f.add(
        "groups",
        &Optimizer::groups,
        "parameters that are trained in another way, by name; what a later group says wins"
    );
    f.add(
        "master_weights",
        &Optimizer::master_weights,
        "keep float32 copies of bf16 weights; without them set stochastic_rounding, or small "
        "updates are lost"
    );
    f.add("state_dtype", &Optimizer::state_dtype, "number format of the optimizer's state")
        .one_of({"fp32", "bf16"});
    f.add(
        "stochastic_rounding",
        &Optimizer::stochastic_rounding,
        "round bf16 state, and bf16 weights without masters, up or down at random"
    );
    f.add(
         "offload",
         &Optimizer::offload,
         "keep state and master weights in host memory, and update there"
    )
        .may_change();
    f.check("weight_decay_start", [](const Optimizer& o) -> std::string {
      return o.weight_decay_start && o.weight_decay_schedule == "constant"
                 ? "does nothing while weight_decay_schedule is \"constant\": set it to "
                   "\"linear\" or \"cosine\""
                 : "";
    });
    f.check("stochastic_rounding", [](const Optimizer& o) -> std::string {
      return o.stochastic_rounding && o.master_weights && o.state_dtype == "fp32"
                 ? "rounds nothing: set state_dtype to \"bf16\", or master_weights to false"
                 : "";
    });
    return f;
  }();
  return fields;
}

void Recipe::ParameterGroup::fields(Fields<ParameterGroup>& f) {
  f.add(
       "match",
       &ParameterGroup::match,
       "global names of the parameters, `*` stands for any characters: { \"*.attention.*\" }"
  )
      .required();
  f.add("lr_multiplier", &ParameterGroup::lr_multiplier, "factor of their learning rate")
      .at_least(0);
  f.add("decay_multiplier", &ParameterGroup::decay_multiplier, "factor of their weight decay")
      .at_least(0);
  f.add("frozen", &ParameterGroup::frozen, "keep them as they are: no gradients, no state");
}

const Fields<Recipe::LrSchedule>& lr_schedule_fields() {
  static const Fields<Recipe::LrSchedule> fields = [] {
    Fields<Recipe::LrSchedule> f;
    f.add("use", &Recipe::LrSchedule::use, "the plugin's name");
    f.add(
         "on_resume",
         &Recipe::LrSchedule::on_resume,
         "whose learning rates and weight decay a resumed run goes on with"
    )
        .one_of({"recipe", "checkpoint"});
    return f;
  }();
  return fields;
}

} // namespace mh
