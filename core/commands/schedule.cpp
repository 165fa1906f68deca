#include "core/base/text.hpp"
#include "core/commands/commands.hpp"
#include "core/formats/json.hpp"
#include "core/plan/timeline.hpp"
#include "core/schema/sections.hpp"
#include "core/step/stages.hpp"
#include "core/storage/file_system.hpp"
#include "megahost/error.hpp"
#include "megahost/tokenizer.hpp"

#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <numeric>

namespace mh {

namespace {

constexpr int64_t kMostOfEach = 4096;

/// The options as layers over the recipe, so that its checks see them.
std::vector<Layer> pipeline_layers(const Invocation& invocation, Host& host) {
  const Schema keys = shared_schema("parallel", host.known(Kind::strategy));
  const auto is_stages = [](const Field& field) {
    return field.degree && field.along == MeshAxis::pp;
  };
  const auto stages = std::find_if(keys.fields.begin(), keys.fields.end(), is_stages);
  const Field* own = stages == keys.fields.end() ? nullptr : &*stages;
  Table parallel;
  std::vector<Layer> layers;
  const auto number = [&](const char* option) {
    return number_option(invocation, option, 1, 1, kMostOfEach);
  };
  const auto mark = [](const char* option, Value value) {
    value.origin.source = std::make_shared<const Source>(Source{option, "", option});
    return value;
  };
  const auto set = [&](const char* option, const Field* field, const auto& value) {
    if (!invocation.has(option)) {
      return;
    }
    if (field == nullptr) {
      throw Error(
          std::string(option) + " is of pipelines, and no strategy that is found makes one",
          "megahost plugins lists what is there, and why files are left out"
      );
    }
    parallel.set(field->name, mark(option, value(option)));
  };
  const auto word = [&](const char* option) { return invocation.value(option); };
  set("--stages", own, number);
  set("--virtual", keys.find(Mechanism::virtual_stages), number);
  set("--schedule", keys.find(Mechanism::schedule), word);
  if (invocation.has("--microbatches")) {
    const char* option = "--microbatches";
    parallel.set("data", mark(option, int64_t{1}));
    Table batch{{"micro", int64_t{1}}};
    batch.set("global", mark(option, number(option)));
    layers.push_back({option, Table{{"batch", std::move(batch)}}});
  }
  layers.push_back({"schedule", Table{{"parallel", std::move(parallel)}}});
  return layers;
}

/// The schedule of a recipe by the clock.
struct Drawn {
  PipelineSchedule::Args args;
  std::vector<LayoutChunk> layout;
  std::vector<double> costs; // cost of each chunk
  Timeline timeline;
  std::vector<int64_t> live; // passes whose activations each stage holds at a time
};

std::vector<double>
chunk_costs(const std::vector<LayoutChunk>& layout, const std::vector<double>& blocks) {
  std::vector<double> costs;
  auto block = blocks.begin();
  for (const auto& chunk : layout) {
    const auto count = chunk.layers + (chunk.embedding ? 1 : 0) + (chunk.head ? 1 : 0);
    costs.push_back(std::accumulate(block, block + count, 0.0));
    block += count;
  }
  return costs;
}

int64_t most_live(const std::vector<Instruction>& list) {
  int64_t live = 0, most = 0;
  for (const auto& one : list) {
    live += one.op == Instruction::Op::forward ? 1 : 0;
    most = std::max(most, live);
    live -= one.op == Instruction::Op::backward || one.op == Instruction::Op::backward_weight;
  }
  return most;
}

Drawn draw(const Recipe& recipe, Host& host) {
  const auto& parallel = recipe.parallel;
  if (parallel.pipeline == 1) {
    throw Error(
        "this recipe has one pipeline stage, which never waits", "try --stages 4 --microbatches 8"
    );
  }
  const auto tokenizer = host.make<Tokenizer>(recipe.tokenizer);
  const auto architecture = host.make<Architecture>(
      recipe.model, {.vocab = tokenizer->vocab(), .seq_length = recipe.model.seq_length}
  );
  const auto blocks = block_costs(*architecture, recipe.model.seq_length);
  Drawn drawn;
  drawn.layout = stage_layout(recipe, blocks);
  drawn.costs = chunk_costs(drawn.layout, blocks);
  const int64_t samples = recipe.batch.micro * parallel.data_degree(parallel.ranks());
  const auto pipeline = make_pipeline(recipe, host, recipe.batch.global / samples);
  drawn.args = pipeline->args();
  const auto& lists = pipeline->training(drawn.args.microbatches);
  const double mean = std::accumulate(drawn.costs.begin(), drawn.costs.end(), 0.0) /
                      static_cast<double>(drawn.costs.size());
  std::vector<double> times; // time of each chunk's forward pass; the mean is 1
  for (const double cost : drawn.costs) {
    times.push_back(cost / mean);
  }
  drawn.timeline = simulate(drawn.args, lists, {times, times, times});
  for (const auto& list : lists) {
    drawn.live.push_back(most_live(list));
  }
  return drawn;
}

/// (p - 1)/m and (p - 1)/(v m), as the papers say the bubble of even stages.
double paper_bubble(const PipelineSchedule::Args& args, int64_t virtual_stages) {
  return static_cast<double>(args.stages - 1) /
         static_cast<double>(virtual_stages * args.microbatches);
}

std::string title_of(const Recipe& recipe, const Drawn& drawn) {
  const auto& args = drawn.args;
  return recipe.parallel.schedule.use + " over " + std::to_string(args.stages) + " stages" +
         (args.virtual_stages > 1 ? " of " + std::to_string(args.virtual_stages) + " chunks" : "") +
         ", " + std::to_string(args.microbatches) + " microbatch" +
         (args.microbatches == 1 ? "" : "es") + ": " + layout_text(drawn.layout);
}

void print_json(const Recipe& recipe, const Drawn& drawn) {
  const auto& args = drawn.args;
  nlohmann::json passes = nlohmann::json::array();
  for (size_t stage = 0; stage < drawn.timeline.stages.size(); ++stage) {
    for (const auto& [what, begin, end] : drawn.timeline.stages[stage]) {
      passes.push_back(
          {{"stage", stage},
           {"op", op_name(what.op)},
           {"chunk", what.chunk},
           {"microbatch", what.microbatch},
           {"begin", begin},
           {"end", end}}
      );
    }
  }
  const nlohmann::json object = {
      {"schedule", recipe.parallel.schedule.use},
      {"stages", args.stages},
      {"virtual_stages", args.virtual_stages},
      {"microbatches", args.microbatches},
      {"layout", layout_text(drawn.layout)},
      {"chunk_flops_per_token", drawn.costs},
      {"length", drawn.timeline.length},
      {"bubble", drawn.timeline.bubble()},
      {"bubble_share_of_step", drawn.timeline.idle()},
      {"(p-1)/m", paper_bubble(args, 1)},
      {"(p-1)/(v m)", paper_bubble(args, args.virtual_stages)},
      {"most_live_passes", drawn.live},
      {"passes", passes}};
  std::printf("%s\n", json_text(object).c_str());
}

void print(const Recipe& recipe, const Drawn& drawn) {
  const Terminal terminal = Terminal::of(STDOUT_FILENO);
  std::printf("%s\n\n", title_of(recipe, drawn).c_str());
  const std::string rows = timeline_rows(drawn.timeline, terminal);
  std::printf(
      "%s\n", rows.empty() ? "(more passes than fit here: --svg FILE draws them)\n" : rows.c_str()
  );
  const auto percent = [](double share) { return 100 * share; };
  std::printf(
      "bubble  %.1f%% of the time with work, %.1f%% of the step\n",
      percent(drawn.timeline.bubble()),
      percent(drawn.timeline.idle())
  );
  std::printf(
      "        papers, of even stages: (p-1)/m = %.1f%%", percent(paper_bubble(drawn.args, 1))
  );
  if (drawn.args.virtual_stages > 1) {
    std::printf(
        ", interleaved (p-1)/(v m) = %.1f%%",
        percent(paper_bubble(drawn.args, drawn.args.virtual_stages))
    );
  }
  std::printf("\nwork    ");
  const double most = *std::max_element(drawn.costs.begin(), drawn.costs.end());
  std::vector<std::string> shares, live;
  for (const double cost : drawn.costs) {
    shares.push_back(std::to_string(std::lround(percent(cost / most))) + "%");
  }
  for (const int64_t passes : drawn.live) {
    live.push_back(std::to_string(passes));
  }
  std::printf("cost of each chunk, the most expensive = 100%%: %s\n", join(shares, " ").c_str());
  std::printf("memory  passes whose activations each stage holds: %s\n", join(live, " ").c_str());
}

} // namespace

int command_schedule(const Invocation& invocation, Host& host) {
  const Recipe recipe =
      read_resolved(invocation, host, invocation.arguments.front(), [&](const Value&) {
        return pipeline_layers(invocation, host);
      }).resolved.recipe;
  const Drawn drawn = draw(recipe, host);
  if (invocation.has("--json")) {
    print_json(recipe, drawn);
  } else if (invocation.has("--svg")) {
    const std::string file = invocation.value("--svg");
    replace_file(file, timeline_svg(title_of(recipe, drawn), drawn.timeline));
    std::printf("%s shows %s\n", file.c_str(), title_of(recipe, drawn).c_str());
  } else {
    print(recipe, drawn);
  }
  return 0;
}

} // namespace mh
