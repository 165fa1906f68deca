#include "core/recipe/conditions.hpp"
#include "core/recipe/pipeline_layout.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <tuple>

namespace mh {

namespace {

class LayoutContradictions : public Conditions {
public:
  explicit LayoutContradictions(const Conditions& conditions)
      : Conditions(conditions) {}

  void run() {
    attention();
    layers();
    sequence();
    exchanged_heads();
    world();
    strategies();
  }

private:
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
    divides("model.heads", "parallel.tensor", "tensor parallelism shards whole heads");
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
    if (sound({"parallel.schedule", "parallel.virtual_stages", "parallel.pipeline"})) {
      const std::string schedule = word("parallel.schedule");
      const bool vee = schedule == "zb-v";
      const int64_t chunks = integer("parallel.virtual_stages"), expected = vee ? 2 : 1;
      const bool matters = chunks > 1 || integer("parallel.pipeline") > 1;
      if (schedule.starts_with("zb") && chunks != expected && matters) {
        report(
            {"parallel.virtual_stages", "parallel.schedule"},
            "parallel.virtual_stages " + text(chunks) +
                " does not work with the zero-bubble schedule \"" + schedule + "\", expected " +
                text(expected),
            vee ? "the model lies on its stages down and up again: two chunks of layers on each"
                : "it has one chunk of layers on each stage; 1f1b takes several"
        );
      }
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
            std::string(key) + " " + text(degree) + " shards experts, but the model \"" +
                word("model.use") + "\" has none",
            "choose a model with experts, such as model.use = \"moe\", or set " + std::string(key) +
                " to 1"
        );
      } else if (size > 0 && size % degree != 0) {
        report(
            {key, name},
            std::string(name) + " " + text(size) + " is not divisible by " + key + " " +
                text(degree),
            "experts are sharded whole and cut in equal parts" + nearest_degrees(key, size)
        );
      }
    }
  }
};

} // namespace

void check_layout_contradictions(const Conditions& conditions) {
  LayoutContradictions(conditions).run();
}

} // namespace mh
