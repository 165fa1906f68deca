#pragma once
/// The keys of pipeline parallelism and its schedules, and the combinations that are refused;
/// without LibTorch.

#include <megahost/conditions.hpp>
#include <megahost/layout_search.hpp>
#include <megahost/pipeline_layout.hpp>
#include <megahost/schema.hpp>

#include <algorithm>
#include <string>
#include <vector>

namespace mh::pipeline {

struct Keys {
  struct Config {
    int64_t pipeline = 1;
    PluginSection schedule{"1f1b", Table{}};
    int64_t virtual_stages = 1;
    std::string layout = "balanced";
  };

  static void fields(Fields<Config>& f) {
    f.add("pipeline", &Config::pipeline, "pipeline stages").at_least(1).degree(MeshAxis::pp);
    f.add("schedule", &Config::schedule, "pipeline schedule")
        .names(Kind::pipeline_schedule)
        .along(MeshAxis::pp)
        .is(Mechanism::schedule);
    f.add("virtual_stages", &Config::virtual_stages, "chunks of the model on each pipeline stage")
        .at_least(1)
        .along(MeshAxis::pp)
        .is(Mechanism::virtual_stages);
    f.add(
         "pipeline_layout",
         &Config::layout,
         "which layers lie in which chunk of the pipeline; balanced: by their cost, the head's "
         "counted; even: as many in each; or written out, such as embed+3|4|4|3+head"
    )
        .along(MeshAxis::pp)
        .is(Mechanism::pipeline_layout);
    f.check("pipeline_layout", [](const Config& p) -> std::string {
      if (is_layout_word(p.layout)) {
        return "";
      }
      const auto chunks = parse_layout(p.layout);
      if (!chunks) {
        return "\"" + p.layout +
               "\" is no layout, expected balanced, even, or layers between bars from embed to "
               "head, such as \"embed+3|4|4|3+head\"";
      }
      const auto found = static_cast<int64_t>(chunks->size());
      const int64_t expected = p.pipeline * p.virtual_stages;
      return found == expected
                 ? ""
                 : "\"" + p.layout + "\" has " + std::to_string(found) +
                       " chunks, expected parallel.pipeline " + std::to_string(p.pipeline) +
                       " times parallel.virtual_stages " + std::to_string(p.virtual_stages) +
                       " = " + std::to_string(expected);
    });
  }

  static void conditions(Conditions& c) {
    const int64_t layers = c.layers();
    const bool sound = layers > 0 && c.sound(c.layer_keys());
    const int64_t stages = c.integer("parallel.pipeline");
    const int64_t chunks = stages * c.integer("parallel.virtual_stages");
    const std::string layout = c.word("parallel.pipeline_layout");
    if (sound && c.sound({"parallel.pipeline_layout"})) {
      of_layers(c, layout, layers, chunks);
    }
    if (sound && c.sound({"parallel.pipeline", "parallel.virtual_stages"}) && layers < chunks &&
        is_layout_word(layout)) {
      const int64_t fewer = std::min(layers, stages);
      c.report(
          {"model.layers", "parallel.pipeline", "parallel.virtual_stages"},
          layers_of(c) + " is fewer than parallel.pipeline " + c.text(stages) +
              " times parallel.virtual_stages " + c.text(c.integer("parallel.virtual_stages")),
          "each chunk of a stage needs at least one layer; nearest: parallel.pipeline " +
              c.text(fewer) +
              (fewer > 1 ? ", parallel.virtual_stages " + c.text(layers / fewer) : "")
      );
    }
    if (c.sound({"parallel.pipeline", "parallel.virtual_stages"}) && stages == 1 && chunks > 1) {
      c.report(
          {"parallel.virtual_stages"},
          "parallel.virtual_stages " + c.text(chunks) + " needs parallel.pipeline above 1",
          "virtual stages interleave the chunks of several stages; nearest: "
          "parallel.virtual_stages 1, or parallel.pipeline 2"
      );
    }
  }

  static std::vector<Table> searched(const SearchFacts& facts) {
    return degrees_up_to("pipeline", facts.layers > 0 ? facts.layers : facts.world);
  }

  static std::vector<Table> changes(const SearchFacts&, const Value& parallel) {
    return neighbours("pipeline", parallel.find("pipeline")->as_integer());
  }

private:
  /// "model.layers 4 plus model.encoder_layers 4".
  static std::string layers_of(const Conditions& c) {
    std::string sum;
    for (const std::string& key : c.layer_keys()) {
      sum += (sum.empty() ? "" : " plus ") + key + " " + c.text(c.integer(key));
    }
    return sum;
  }

  /// Layers that a written layout has, and what an even one needs.
  static void of_layers(Conditions& c, const std::string& layout, int64_t layers, int64_t chunks) {
    if (layout == "even" && layers >= chunks && layers % chunks != 0) {
      c.report(
          {"parallel.pipeline_layout", "model.layers"},
          layers_of(c) + " is not divisible by the " + c.text(chunks) +
              " chunks of the pipeline, which parallel.pipeline_layout \"even\" needs",
          "parallel.pipeline_layout = \"balanced\" takes any number; nearest: " +
              c.nearest_multiples(layers, chunks)
      );
      return;
    }
    int64_t found = 0;
    const auto written = parse_layout(layout);
    for (const auto& chunk : written.value_or(std::vector<LayoutChunk>())) {
      found += chunk.layers;
    }
    if (written && found != layers) {
      c.report(
          {"parallel.pipeline_layout", "model.layers"},
          "parallel.pipeline_layout \"" + layout + "\" has " + c.text(found) +
              " layers, expected " + layers_of(c)
      );
    }
  }
};

/// Schedules without options.
struct ScheduleKeys {
  struct Config {};

  static void fields(Fields<Config>&) {}
};

struct OneForwardOneBackward : ScheduleKeys {
  /// Groups of as many microbatches as stages go through chunk after chunk.
  static void conditions(Conditions& c) {
    if (!c.sound({"batch.global", "batch.micro"}) || !c.sound(c.degree_keys())) {
      return;
    }
    const int64_t at_once = c.integer("batch.micro") * c.degree(MeshAxis::dp);
    const int64_t global = c.integer("batch.global"), microbatches = global / at_once;
    const int64_t stages = c.integer("parallel.pipeline");
    if (global % at_once == 0 && c.integer("parallel.virtual_stages") > 1 && stages > 1 &&
        microbatches % stages != 0) {
      c.report(
          {"batch.global", "parallel.virtual_stages", "parallel.pipeline"},
          c.text(microbatches) + " microbatches are not divisible by parallel.pipeline " +
              c.text(stages) + ", which parallel.virtual_stages above 1 needs",
          "batch.global / (batch.micro x data-parallel degree) is the number of microbatches; "
          "nearest: batch.global " +
              c.nearest_multiples(global, at_once * stages)
      );
    }
  }
};

/// The one that a search tries, with as many chunks a stage as it takes.
struct Searched : OneForwardOneBackward {
  static std::vector<Table> searched(const SearchFacts&) {
    return {{{"virtual_stages", 1}}, {{"virtual_stages", 2}}, {{"virtual_stages", 4}}};
  }

  static std::vector<Table> changes(const SearchFacts& facts, const Value& parallel) {
    return facts.shape.pp > 1 && parallel.find("virtual_stages")->as_integer() == 1
               ? std::vector<Table>{{{"virtual_stages", 2}}}
               : std::vector<Table>();
  }
};

/// The conditions that both zero-bubble schedules have.
inline void zero_bubble_conditions(Conditions& c, int64_t expected, const std::string& why) {
  const std::string schedule = c.word("parallel.schedule");
  if (c.sound({"parallel.schedule", "recompute.use"}) && c.recomputes_blocks()) {
    c.report(
        {"recompute.use", "parallel.schedule"},
        "recompute.use \"" + c.word("recompute.use") +
            "\" does not work with the zero-bubble schedule \"" + schedule +
            "\", expected a policy that recomputes no whole blocks",
        "the split backward pass would compute each block a third time"
    );
  }
  const int64_t chunks = c.integer("parallel.virtual_stages");
  const bool matters = chunks > 1 || c.integer("parallel.pipeline") > 1;
  if (c.sound({"parallel.schedule", "parallel.virtual_stages", "parallel.pipeline"}) &&
      chunks != expected && matters) {
    c.report(
        {"parallel.virtual_stages", "parallel.schedule"},
        "parallel.virtual_stages " + c.text(chunks) +
            " does not work with the zero-bubble schedule \"" + schedule + "\", expected " +
            c.text(expected),
        why
    );
  }
}

struct ZeroBubble : ScheduleKeys {
  static void conditions(Conditions& c) {
    zero_bubble_conditions(c, 1, "it has one chunk of layers on each stage; 1f1b takes several");
  }

  static std::vector<Table> searched(const SearchFacts&) { return {{{"virtual_stages", 1}}}; }

  static std::vector<Table> changes(const SearchFacts& facts, const Value& parallel) {
    return facts.shape.pp > 1 && parallel.find("virtual_stages")->as_integer() == 1
               ? std::vector<Table>{{}}
               : std::vector<Table>();
  }
};

struct ZeroBubbleVee : ScheduleKeys {
  static void conditions(Conditions& c) {
    zero_bubble_conditions(
        c, 2, "the model lies on its stages down and up again: two chunks of layers on each"
    );
  }

  static std::vector<Table> searched(const SearchFacts&) { return {{{"virtual_stages", 2}}}; }
};

} // namespace mh::pipeline
