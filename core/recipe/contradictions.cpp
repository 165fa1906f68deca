#include "core/base/text.hpp"
#include "core/recipe/resolve.hpp"
#include "megahost/conditions.hpp"

#include <string>

namespace mh {

namespace {

/// Contradictions of a run: in its length, batch, evaluation and guards.
class RunContradictions : public Conditions {
public:
  using Conditions::Conditions;

  void run() {
    length();
    batch();
    attention();
    one_key_a_degree();
    world();
    if (facts_.trains) {
      training_share();
      evaluation();
      best_checkpoints();
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

  void batch() {
    if (!sound({"batch.global", "batch.micro"}) || !sound(degree_keys())) {
      return;
    }
    const int64_t global = integer("batch.global");
    const int64_t micro = integer("batch.micro");
    const int64_t copies = degree(MeshAxis::dp);
    if (global % (micro * copies) != 0) {
      report(
          {"batch.global", "batch.micro", "parallel.data"},
          "batch.global " + text(global) + " is not divisible by batch.micro " + text(micro) +
              " times data-parallel degree " + text(copies),
          "nearest: " + nearest_multiples(global, micro * copies)
      );
      return;
    }
    for (const std::string key : {"batch.rampup_start", "batch.rampup_increment"}) {
      if (integer(key) % (micro * copies) != 0) {
        report(
            {key},
            key + " " + text(integer(key)) + " is not divisible by batch.micro " + text(micro) +
                " times data-parallel degree " + text(copies),
            "nearest: " + nearest_multiples(integer(key), micro * copies)
        );
      }
    }
  }

  void attention() {
    if (!has("model.head_dim")) {
      divides(
          "model.hidden",
          "model.heads",
          "each head has hidden / heads numbers; model.head_dim sets another size"
      );
    }
    divides(
        "model.heads", "model.kv_heads", "each key-value head serves the same number of query heads"
    );
  }

  /// Two strategies may each have a degree along one mesh axis; a recipe uses one of them.
  void one_key_a_degree() {
    for (const MeshAxis axis : kAllMeshAxes) {
      std::vector<std::string> given;
      for (const Field& field : parallel_->fields) {
        if (field.degree && field.along == axis && integer("parallel." + field.name) > 1) {
          given.push_back("parallel." + field.name);
        }
      }
      if (given.size() > 1) {
        report(
            given,
            join(given, " and ") + " are both above 1, expected one of them",
            "both say how many ranks the mesh axis " + std::string(to_string(axis)) + " has"
        );
      }
    }
  }

  /// Ranks that are there but not used.
  void world() {
    std::vector<std::string> keys{degree_key(MeshAxis::dp)}, names;
    for (const std::string& key : degree_keys()) {
      if (key != keys.front()) {
        keys.push_back(key);
      }
    }
    if (facts_.world == 1 || !sound(keys)) {
      return;
    }
    for (const MeshAxis axis : {MeshAxis::tp, MeshAxis::pp, MeshAxis::cp}) {
      if (const std::string key = degree_key(axis); !key.empty()) {
        names.push_back(key.substr(key.find('.') + 1));
      }
    }
    const int64_t one = model_ranks(), copies = degree(MeshAxis::dp), used = one * copies;
    if (used < facts_.world) { // more than there are: who starts the run says how to start them
      report(
          keys,
          "the layout has " + text(used) + " ranks (" + join(names, " x ") + " = " + text(one) +
              ", data " + text(copies) + "), the run has " + text(facts_.world),
          facts_.world % one == 0
              ? "parallel.data " + text(facts_.world / one) + ", or \"auto\", uses them all"
              : "start " + text(used) + " ranks, or choose degrees whose product divides " +
                    text(facts_.world)
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

  void best_checkpoints() {
    if (sound({"checkpoint.keep_best", "train.eval_interval"}) &&
        integer("checkpoint.keep_best") > 0 && integer("train.eval_interval") == 0) {
      report(
          {"checkpoint.keep_best", "train.eval_interval"},
          "checkpoint.keep_best goes by validation losses, but train.eval_interval 0 makes none",
          "set train.eval_interval to a divisor of checkpoint.interval"
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

void check_contradictions(
    const Value& tree,
    const Facts& facts,
    const SectionSchemas& schemas,
    std::vector<Problem>& problems
) {
  RunContradictions(tree, facts, schemas, problems).run();
}

} // namespace mh
