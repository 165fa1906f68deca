#include "core/recipe/pipeline_layout.hpp"
#include "core/recipe/resolve.hpp"

#include <algorithm>
#include <numeric>
#include <string>

namespace mh {

namespace {

std::string text(int64_t number) {
  return std::to_string(number);
}

/// The tree as the conditions read it.
class Contradictions {
public:
  Contradictions(const Value& tree, const Facts& facts, std::vector<Problem>& problems)
      : tree_(tree)
      , facts_(facts)
      , problems_(problems) {
    for (const Problem& problem : problems) {
      refused_.push_back(problem.key);
    }
  }

  void run() {
    length();
    schedule_units();
    schedule_values();
    batch();
    attention();
    layers();
    sequence();
    exchanged_heads();
    world();
    strategies();
    evaluation();
    rewinds("guards.nan");
    rewinds("guards.spike");
  }

private:
  /// True if none of the keys, and none of the sections whole, has been refused.
  bool sound(std::initializer_list<const char*> keys) const {
    return std::all_of(keys.begin(), keys.end(), [this](const std::string key) {
      return std::none_of(refused_.begin(), refused_.end(), [&key](const std::string& refused) {
        return refused == key || key.starts_with(refused + ".") ||
               refused == key.substr(0, key.find('.')) + ".use";
      });
    });
  }

  bool has(const char* key) const { return tree_.find_path(key) != nullptr; }

  /// 0 where the key is absent or no number.
  int64_t integer(const char* key) const {
    const Value* value = tree_.find_path(key);
    return value && value->is_integer() ? value->as_integer() : 0;
  }

  double number(const char* key) const {
    const Value* value = tree_.find_path(key);
    return value && value->is_number() ? value->as_number() : 0;
  }

  std::string word(const char* key) const {
    const Value* value = tree_.find_path(key);
    return value && value->is_string() ? value->as_string() : "";
  }

  /// Reports at the first of the keys that somebody wrote.
  void report(std::initializer_list<const char*> keys, std::string message, std::string note = "") {
    const char* at = *keys.begin();
    for (const char* key : keys) {
      const Value* value = tree_.find_path(key);
      if (value && value->origin.line > 0) {
        at = key;
        break;
      }
    }
    const Value* value = tree_.find_path(at);
    problems_.push_back(
        {value ? value->origin : tree_.origin, at, std::move(message), "", std::move(note)}
    );
  }

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

  int64_t data_degree() const {
    if (const int64_t given = integer("parallel.data"); given > 0) {
      return given;
    }
    return std::max<int64_t>(
        1,
        facts_.world / (integer("parallel.tensor") * integer("parallel.pipeline") *
                        integer("parallel.context"))
    );
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
    if (integer("parallel.virtual_stages") > 1 && stages > 1 && microbatches % stages != 0) {
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

  static std::string nearest_multiples(int64_t number, int64_t step) {
    const int64_t below = number / step * step;
    return (below > 0 ? text(below) + ", " : "") + text(below + step);
  }

  /// "nearest: parallel.tensor 4, 6": the degrees next to the one given that divide `whole`.
  std::string nearest_degrees(const char* key, int64_t whole) const {
    const int64_t given = integer(key);
    std::string text;
    for (int64_t below = given - 1; below > 0 && text.empty(); --below) {
      text = whole % below == 0 ? std::to_string(below) : "";
    }
    for (int64_t above = given + 1; above <= whole; ++above) {
      if (whole % above == 0) {
        text += (text.empty() ? "" : ", ") + std::to_string(above);
        break;
      }
    }
    return std::string("; nearest: ") + key + " " + text;
  }

  void divides(const char* whole, const char* part, const std::string& why) {
    if (sound({whole, part}) && integer(whole) > 0 && integer(part) > 0 &&
        integer(whole) % integer(part) != 0) {
      report(
          {whole, part},
          std::string(whole) + " " + text(integer(whole)) + " is not divisible by " + part + " " +
              text(integer(part)),
          why + (std::string(part).starts_with("parallel.") ? nearest_degrees(part, integer(whole))
                                                            : "")
      );
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
    divides("model.heads", "parallel.tensor", "tensor parallelism deals out whole heads");
    divides(
        "model.ffn_hidden", "parallel.tensor", "tensor parallelism splits the feed-forward layer"
    );
    const int64_t kv_heads = integer("model.kv_heads");
    const int64_t tensor = integer("parallel.tensor");
    if (sound({"model.kv_heads", "parallel.tensor"}) && kv_heads > 0 && tensor > 0 &&
        kv_heads % tensor != 0 && tensor % kv_heads != 0) {
      report(
          {"model.kv_heads", "parallel.tensor"},
          "model.kv_heads " + text(kv_heads) + " and parallel.tensor " + text(tensor) +
              " do not divide one another",
          "each rank holds whole key-value heads, or several ranks share one" +
              nearest_degrees("parallel.tensor", kv_heads)
      );
    }
  }

  /// Layers that a written layout has, and what an even one needs.
  void pipeline_layout(const std::string& layout, int64_t layers, int64_t chunks) {
    if (layout == "even" && layers >= chunks && layers % chunks != 0) {
      report(
          {"parallel.pipeline_layout", "model.layers"},
          "model.layers " + text(layers) + " is not divisible by the " + text(chunks) +
              " chunks of the pipeline, which parallel.pipeline_layout \"even\" needs",
          "parallel.pipeline_layout = \"balanced\" takes any number; nearest: " +
              nearest_multiples(layers, chunks)
      );
      return;
    }
    int64_t found = 0;
    const auto written = parse_layout(layout);
    for (const auto& chunk : written.value_or(std::vector<LayoutChunk>())) {
      found += chunk.layers;
    }
    if (written && found != layers) {
      report(
          {"parallel.pipeline_layout", "model.layers"},
          "parallel.pipeline_layout \"" + layout + "\" has " + text(found) +
              " layers, expected model.layers " + text(layers)
      );
    }
  }

  /// The most chunks that this many layers fill.
  static std::string nearest_chunks(int64_t layers, int64_t stages) {
    const int64_t fewer = std::min(layers, stages);
    return "parallel.pipeline " + text(fewer) +
           (fewer > 1 ? ", parallel.virtual_stages " + text(layers / fewer) : "");
  }

  void layers() {
    const int64_t layers = integer("model.layers");
    const int64_t stages = integer("parallel.pipeline");
    const int64_t chunks = stages * integer("parallel.virtual_stages");
    const std::string layout = word("parallel.pipeline_layout");
    const bool written = !is_layout_word(layout);
    if (sound({"parallel.pipeline_layout", "model.layers"}) && layers > 0) {
      pipeline_layout(layout, layers, chunks);
    }
    if (sound({"model.layers", "parallel.pipeline", "parallel.virtual_stages"}) && layers > 0 &&
        layers < chunks && !written) {
      report(
          {"model.layers", "parallel.pipeline", "parallel.virtual_stages"},
          "model.layers " + text(layers) + " is fewer than parallel.pipeline " + text(stages) +
              " times parallel.virtual_stages " + text(integer("parallel.virtual_stages")),
          "each chunk of a stage needs at least one layer; nearest: " +
              nearest_chunks(layers, stages)
      );
    }
    if (sound({"parallel.pipeline", "parallel.virtual_stages"}) && stages == 1 && chunks > 1) {
      report(
          {"parallel.virtual_stages"},
          "parallel.virtual_stages " + text(chunks) + " needs parallel.pipeline above 1",
          "virtual stages interleave the chunks of several stages; nearest: "
          "parallel.virtual_stages 1, or parallel.pipeline 2"
      );
    }
  }

  void sequence() {
    const Value* sequence = tree_.find_path("parallel.sequence");
    const bool split = sequence && sequence->is_boolean() && sequence->as_boolean();
    const int64_t tensor = integer("parallel.tensor");
    const int64_t context = integer("parallel.context");
    if (sound({"parallel.sequence", "parallel.tensor"}) && split && tensor == 1) {
      report(
          {"parallel.sequence"},
          "parallel.sequence needs parallel.tensor above 1",
          "it splits the sequence over the tensor-parallel ranks; nearest: parallel.tensor 2, or "
          "parallel.sequence false"
      );
    }
    if (!sound({"model.seq_length", "parallel.context", "parallel.tensor"})) {
      return;
    }
    const int64_t length = integer("model.seq_length");
    if (context > 1 && length % (2 * context) != 0) {
      report(
          {"model.seq_length", "parallel.context"},
          "model.seq_length " + text(length) +
              " is not divisible by 2 x parallel.context = " + text(2 * context),
          "each rank holds two pieces of the sequence, one early and one late: nearest " +
              nearest_multiples(length, 2 * context) +
              (length % 2 == 0 ? nearest_degrees("parallel.context", length / 2) : "")
      );
    } else if (split && tensor > 1 && length % (tensor * context) != 0) {
      report(
          {"model.seq_length", "parallel.tensor"},
          "model.seq_length " + text(length) +
              " is not divisible by parallel.tensor x parallel.context = " +
              text(tensor * context) + ", which parallel.sequence needs",
          "nearest: " + nearest_multiples(length, tensor * context)
      );
    }
  }

  /// Exchanged heads: each rank of tensor parallelism deals its own out over the context ranks.
  void exchanged_heads() {
    const int64_t context = integer("parallel.context");
    if (context == 1 || word("parallel.context_method") != "all_to_all" ||
        !sound({"model.heads", "model.kv_heads", "parallel.context", "parallel.tensor"})) {
      return;
    }
    const int64_t tensor = integer("parallel.tensor");
    const int64_t heads = integer("model.heads");
    const int64_t kv_heads = integer("model.kv_heads") > 0 ? integer("model.kv_heads") : heads;
    const int64_t fewest = std::max<int64_t>(1, kv_heads / tensor);
    if (heads > 0 && (heads / tensor % context != 0 || fewest % context != 0)) {
      report(
          {"parallel.context", "parallel.context_method", "model.kv_heads"},
          "parallel.context " + text(context) + " with context_method \"all_to_all\" divides " +
              "heads, but a rank of parallel.tensor " + text(tensor) + " has " +
              text(heads / tensor) + " heads and " + text(fewest) + " key-value heads",
          "choose context_method \"ring\" or \"all_gather\"" +
              nearest_degrees("parallel.context", std::gcd(heads / tensor, fewest))
      );
    }
  }

  /// Ranks that are there but not used.
  void world() {
    if (facts_.world == 1 ||
        !sound({"parallel.data", "parallel.tensor", "parallel.pipeline", "parallel.context"})) {
      return;
    }
    const int64_t one =
        integer("parallel.tensor") * integer("parallel.pipeline") * integer("parallel.context");
    const int64_t used = one * data_degree();
    if (used < facts_.world) { // more than there are: who starts the run says how to start them
      report(
          {"parallel.data", "parallel.tensor", "parallel.pipeline", "parallel.context"},
          "the layout has " + text(used) + " ranks (tensor x pipeline x context = " + text(one) +
              ", data " + text(data_degree()) + "), the run has " + text(facts_.world),
          facts_.world % one == 0
              ? "parallel.data " + text(facts_.world / one) + ", or \"auto\", uses them all"
              : "start " + text(used) + " ranks, or choose degrees whose product divides " +
                    text(facts_.world)
      );
    }
  }

  void strategies() {
    if (sound({"parallel.zero", "parallel.pipeline"}) && integer("parallel.zero") >= 2 &&
        integer("parallel.pipeline") > 1) {
      report(
          {"parallel.zero", "parallel.pipeline"},
          "parallel.zero " + text(integer("parallel.zero")) +
              " does not work with parallel.pipeline " + text(integer("parallel.pipeline")) +
              ", expected zero 0 or 1",
          "each microbatch would have to reduce every gradient; nearest: parallel.zero 1, or "
          "parallel.pipeline 1"
      );
    }
    if (sound({"parallel.schedule", "recompute.use"}) &&
        word("parallel.schedule").starts_with("zb") && word("recompute.use") == "full") {
      report(
          {"recompute.use", "parallel.schedule"},
          "recompute.use \"full\" does not work with the zero-bubble schedule \"" +
              word("parallel.schedule") + "\", expected \"none\" or \"selective\"",
          "the split backward pass would compute each block a third time"
      );
    }
    if (sound({"parallel.schedule", "parallel.virtual_stages"}) &&
        word("parallel.schedule").starts_with("zb") && integer("parallel.virtual_stages") > 1) {
      report(
          {"parallel.virtual_stages", "parallel.schedule"},
          "parallel.virtual_stages " + text(integer("parallel.virtual_stages")) +
              " does not work with the zero-bubble schedule \"" + word("parallel.schedule") +
              "\", expected 1",
          "it has one chunk of layers on each stage; 1f1b takes several"
      );
    }
    expert_degrees();
    const int64_t experts = integer("parallel.expert") * integer("parallel.expert_tensor");
    if (sound(
            {"parallel.expert",
             "parallel.expert_tensor",
             "parallel.tensor",
             "parallel.context",
             "parallel.data",
             "parallel.pipeline"}
        )) {
      const int64_t ranks =
          integer("parallel.tensor") * integer("parallel.context") * data_degree();
      if (experts > 1 && ranks % experts != 0) {
        report(
            {"parallel.expert", "parallel.expert_tensor"},
            "tensor x context x data = " + text(ranks) +
                " ranks are not divisible by expert x expert_tensor = " + text(experts),
            "expert parallelism lies inside the ranks of one pipeline stage" +
                (ranks % integer("parallel.expert_tensor") == 0
                     ? nearest_degrees("parallel.expert", ranks / integer("parallel.expert_tensor"))
                     : "")
        );
      }
    }
  }

  /// Experts are dealt out whole, each cut in equal parts.
  void expert_degrees() {
    const int64_t experts = integer("model.experts");
    const int64_t hidden = integer("model.expert_hidden") > 0 ? integer("model.expert_hidden")
                                                              : integer("model.ffn_hidden");
    for (const auto& [key, size, name] :
         {std::tuple("parallel.expert", experts, "model.experts"),
          std::tuple("parallel.expert_tensor", hidden, "model.expert_hidden")}) {
      const int64_t degree = integer(key);
      if (!sound({key, name}) || degree <= 1) {
        continue;
      }
      if (experts == 0) {
        report(
            {key},
            std::string(key) + " " + text(degree) + " deals experts out, but the model \"" +
                word("model.use") + "\" has none",
            "choose a model with experts, such as model.use = \"moe\", or set " + std::string(key) +
                " to 1"
        );
      } else if (size > 0 && size % degree != 0) {
        report(
            {key, name},
            std::string(name) + " " + text(size) + " is not divisible by " + key + " " +
                text(degree),
            "experts are dealt out whole and cut in equal parts" + nearest_degrees(key, size)
        );
      }
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

  const Value& tree_;
  const Facts& facts_;
  std::vector<Problem>& problems_;
  std::vector<std::string> refused_;
};

} // namespace

void check_contradictions(const Value& tree, const Facts& facts, std::vector<Problem>& problems) {
  Contradictions(tree, facts, problems).run();
}

} // namespace mh
