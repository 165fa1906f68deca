// A plan against the step itself, small, on ranks that are threads: bytes to the byte, collectives
// one by one.

#include "core/mesh/layout.hpp"
#include "core/plan/compose.hpp"
#include "core/plan/plan.hpp"
#include "core/plan/stage_record.hpp"
#include "tests/dist/small_recipe.hpp"
#include "tests/plan/watched.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace planned_tests {

using namespace mh;

namespace {

/// A llama unless `more` names another model: a second name would drop the small sizes of the first.
Recipe small(const std::vector<std::string>& more, const std::string& layout) {
  std::vector<std::string> sets{
      "model.seq_length=64",
      "data.use=mock",
      "recompute.use=none",
      "precision=fp32",
      "batch.global=4"};
  const auto names_model = [](const std::string& set) { return set.starts_with("model.use="); };
  if (std::none_of(more.begin(), more.end(), names_model)) {
    sets.emplace_back("model.use=llama");
  }
  sets.insert(sets.end(), more.begin(), more.end());
  return small_recipe(sets, layout);
}

/// Every collective of a stage's step, in the order of its list.
watched::Log collectives_of(const RecordedStep& step, int64_t stage) {
  watched::Log log;
  const StageRecord& record = step.stage(stage);
  const auto add = [&](const PassRecord& pass) {
    for (const auto& event : pass.events) {
      if (event.kind != PlanEvent::Kind::start) {
        continue;
      }
      const auto& one = record.collectives[event.collective];
      const bool numbers = at::isFloatingType(one.type) && one.type != at::kDouble; // as watched
      if (!one.host && numbers) {
        log.push_back(watched::line(one.name, one.group->axis, one.sizes, one.type));
      }
    }
  };
  for (const auto& one : step.lists[static_cast<size_t>(stage)]) {
    add(record.of(one, step.args.microbatches));
  }
  add(record.closing);
  return log;
}

/// `numbers`: bytes of scalars on the host that an update may hold at the peak; no plan counts them.
void compare(const std::vector<std::string>& more, const std::string& layout, int64_t numbers = 0) {
  const Recipe recipe = small(more, layout);
  CAPTURE(layout);
  CAPTURE(more);
  const auto seen = watched::watch(recipe, small_host());
  const RecordedStep step =
      record_step({.recipe = recipe, .host = small_host(), .world = recipe.parallel.ranks()});
  const auto ranks = mesh_groups(step.shape, MeshAxis::pp, recipe.parallel.order).front();
  for (int64_t stage = 0; stage < step.shape.pp; ++stage) {
    CAPTURE(stage);
    const auto& real = seen[static_cast<size_t>(ranks[static_cast<size_t>(stage)])];
    const StageRecord& record = step.stage(stage);
    CHECK(record.parameters == real.parameters);
    CHECK(record.gradients == real.gradients);
    CHECK(record.state == real.state);
    const int64_t apart = real.peak + record.batches - compose_memory(step, stage).peak;
    CHECK(apart >= 0);
    CHECK(apart <= numbers);
    CHECK(collectives_of(step, stage) == real.collectives);
  }
}

/// Settings of a model that reads samples of a text file, two of them in a microbatch.
std::vector<std::string> of_texts(const std::vector<std::string>& model) {
  const std::string text = std::string(std::getenv("MEGAHOST_SOURCE")) + "/docs/models.md";
  std::vector<std::string> sets = model; // they name the corpus, whose options these are
  sets.insert(
      sets.end(),
      {"model.vocab=512",
       "data.paths=[\"" + text + "\"]",
       "tokenizer={use=\"byte\", special=true, extra_ids=16}",
       "batch.micro=2"}
  );
  return sets;
}

/// A hybrid of this pattern: fp32, bf16, recomputed and under layouts.
void compare_mixers(const std::string& pattern) {
  const std::vector<std::string> hybrid{
      "model.use=hybrid",
      "model.pattern=\"" + pattern + "\"",
      "model.mamba_head_dim=8",
      "model.mamba_groups=2",
      "model.mamba_state=16",
      "model.mamba_chunk=16",
      "model.delta_key_heads=2",
      "model.delta_heads=4",
      "model.delta_key_dim=16",
      "model.delta_dim=8",
      "model.delta_chunk=16"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = hybrid;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  compare(hybrid, "");
  compare(with({"precision=bf16", "recompute.use=full"}), "");
  compare(with({"recompute.use=selective", "recompute.parts=[\"mixer\"]"}), "");
  for (const char* layout :
       {"tensor=2,sequence=true",
        "context=2",
        "context=4",
        "pipeline=2,data=2,zero=1",
        "data=2,zero=3"}) {
    compare(hybrid, layout);
  }
}

} // namespace

TEST_CASE("one rank: bytes are those of the step, under every recompute policy and precision") {
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    for (const char* recompute : {"none", "selective", "full"}) {
      compare(
          {std::string("precision=") + precision, std::string("recompute.use=") + recompute}, ""
      );
    }
  }
  compare({"model.use=gpt"}, "");
  compare({"precision=fp8"}, "");
  compare({"recompute.use=full", "recompute.layers=2"}, "");
  compare({"recompute.use=selective", "recompute.parts=[\"norms\",\"mlp\"]"}, "");
}

TEST_CASE("tensor, sequence, context and data parallel, and zero") {
  for (const char* layout :
       {"tensor=2",
        "tensor=2,sequence=true",
        "context=2,context_method=ring",
        "context=2,context_method=all_gather",
        "context=2,context_method=all_to_all",
        "data=2",
        "data=2,zero=1",
        "data=2,zero=2",
        "data=2,tensor=2,sequence=true,zero=1",
        "data=2,tensor=2,sequence=true,zero=2"}) {
    compare({}, layout);
    compare({"precision=bf16", "recompute.use=selective"}, layout);
  }
  compare({"precision=fp16", "recompute.use=full"}, "tensor=2,sequence=true");
  compare({"precision=fp16", "recompute.use=full"}, "data=2,zero=2");
}

TEST_CASE("mixers of Mamba-2 and gated DeltaNet, and the states that they pass along ranks") {
  compare_mixers("M*-");
  compare_mixers("G*-");
}

TEST_CASE("an encoder, whose tokens see both sides") {
  compare({"model.use=bert", "precision=bf16"}, "");
  compare({"model.use=bert"}, "data=2,tensor=2,sequence=true,zero=1");
}

TEST_CASE("an encoder and a decoder, whose layers and lengths are their own") {
  auto t5 = of_texts({"model.use=t5", "model.encoder_layers=3", "data.use=t5"});
  compare(t5, "");
  compare(t5, "data=2,tensor=2,sequence=true,zero=1");
  compare(t5, "pipeline=2"); // what the encoder made goes on to the next stage, and stays
  compare(t5, "pipeline=2,schedule=zb-h1");
  compare(t5, "pipeline=2,virtual_stages=2");
  t5.insert(t5.end(), {"precision=bf16", "recompute.use=full"});
  compare(t5, "");
  compare(t5, "data=2,zero=3");
}

TEST_CASE("two towers, and contexts that data-parallel ranks exchange") {
  auto retriever = of_texts({"model.use=retriever", "model.query_length=32", "data.use=ict"});
  compare(retriever, "");
  compare(retriever, "pipeline=2");
  compare(retriever, "data=2,tensor=2,sequence=true,zero=1");
  retriever.insert(retriever.end(), {"model.shared_towers=true", "precision=bf16"});
  compare(retriever, "data=2,zero=3");
}

TEST_CASE("pipelines: every schedule") {
  compare({}, "pipeline=2");
  compare({}, "pipeline=4");
  compare({}, "pipeline=2,schedule=gpipe");
  compare({}, "pipeline=2,schedule=zb-h1");
  compare({}, "pipeline=2,virtual_stages=2");
  compare({}, "pipeline=2,virtual_stages=2,schedule=zb-v");
  compare({"model.use=gpt"}, "pipeline=2,data=2,zero=1");
  compare({"precision=bf16", "recompute.use=full"}, "pipeline=2,tensor=2,sequence=true");
  compare({"precision=fp16", "recompute.use=selective"}, "pipeline=2,schedule=zb-h1");
}

TEST_CASE("experts with full slots, whose shapes do not depend on the router") {
  auto padded = small_mixture();
  padded.insert(
      padded.end(),
      {"model.capacity_factor=1.25", "model.capacity_drop=probability", "model.capacity_pad=true"}
  );
  compare(padded, "");
  auto bf16 = padded;
  bf16.emplace_back("precision=bf16");
  compare(bf16, "");
  compare(padded, "expert=2,data=2,expert_dispatch=all_gather");
  compare(padded, "expert=2,data=2,zero=1,expert_dispatch=all_gather");
  compare(padded, "expert=2,tensor=2,sequence=true,expert_dispatch=all_gather");
}

TEST_CASE("ZeRO-3: sharded weights") {
  compare({}, "data=2,zero=3");
  compare({"precision=bf16", "recompute.use=full"}, "data=2,zero=3");
  compare({}, "data=2,tensor=2,zero=3");
}

TEST_CASE("a memory budget is kept within 5%, whatever ranks share") {
  for (const char* layout :
       {"",
        "data=2,zero=1",
        "data=2,zero=3",
        "tensor=2,sequence=true",
        "pipeline=2",
        "pipeline=2,schedule=gpipe",
        "pipeline=2,virtual_stages=2"}) {
    CAPTURE(layout);
    const auto most = [&](const std::vector<std::string>& recompute) {
      std::vector<std::string> sets{"model.layers=8", "batch.micro=2"};
      sets.insert(sets.end(), recompute.begin(), recompute.end());
      const Recipe recipe = small(sets, layout);
      int64_t bytes = 0;
      for (const auto& rank : watched::watch(recipe, small_host())) {
        bytes = std::max(bytes, rank.peak);
      }
      const RecordedStep step =
          record_step({.recipe = recipe, .host = small_host(), .world = recipe.parallel.ranks()});
      return bytes + step.stage(0).batches;
    };
    const int64_t whole = most({"recompute.use=none"});
    const int64_t again = most({"recompute.use=full"});
    const double budget = static_cast<double>(whole + again) / 2;
    CAPTURE(whole);
    CAPTURE(again);
    const auto kept = static_cast<double>(
        most({"recompute.use=budget", "recompute.memory_gb=" + std::to_string(budget / 1e9)})
    );
    CHECK(kept <= budget);
    CHECK(kept >= 0.95 * budget);
  }
}

TEST_CASE("backward: gathers and sums of tensor parallel overlap GEMMs") {
  const Recipe recipe = small({}, "tensor=2,sequence=true");
  const RecordedStep step = record_step({.recipe = recipe, .host = small_host(), .world = 2});
  std::map<size_t, bool> under_way; // whether a product ran meanwhile
  std::map<std::string, int64_t> overlapped;
  const auto& record = step.stage(0);
  for (const auto& event :
       record.of({Instruction::Op::backward, 0, 0}, step.args.microbatches).events) {
    if (event.kind == PlanEvent::Kind::start) {
      under_way[event.collective] = false;
    } else if (event.kind == PlanEvent::Kind::product) {
      for (auto& [number, ran] : under_way) {
        ran = true;
      }
    } else if (event.kind == PlanEvent::Kind::wait && under_way[event.collective]) {
      ++overlapped[record.collectives[event.collective].name];
    }
    if (event.kind == PlanEvent::Kind::wait) {
      under_way.erase(event.collective);
    }
  }
  CHECK(overlapped["all-gather"] >= 2 * step.layers); // queries, keys and values; up
  CHECK(overlapped["reduce-scatter"] >= 2 * step.layers);
}

TEST_CASE("backward: sums over data ranks start early, whatever else norms are summed over") {
  const Recipe recipe =
      small({"parallel.bucket_size=1000"}, "tensor=2,sequence=true,data=2,zero=1");
  const RecordedStep step = record_step({.recipe = recipe, .host = small_host(), .world = 4});
  const auto& record = step.stage(0);
  const auto microbatches = static_cast<int32_t>(step.args.microbatches);
  int64_t early = 0, late = 0; // sums that begin before the last product, and after it
  for (const auto& event :
       record.of({Instruction::Op::backward, 0, microbatches - 1}, microbatches).events) {
    if (event.kind == PlanEvent::Kind::product) {
      early += std::exchange(late, 0);
    } else if (event.kind == PlanEvent::Kind::start) {
      late += record.collectives[event.collective].group->axis == "dp" ? 1 : 0;
    }
  }
  CAPTURE(late);
  CHECK(early > 2 * late);
}

TEST_CASE("uneven experts: the busiest rank's have more rows, memory and products") {
  for (const char* layout : {"expert=2,data=2", "expert=2,data=2,expert_dispatch=all_gather"}) {
    CAPTURE(layout);
    const Recipe recipe = small({"model.use=moe"}, layout);
    const auto recorded = [&](double imbalance) {
      return record_step(
          {.recipe = recipe, .host = small_host(), .world = 2, .imbalance = imbalance}
      );
    };
    const RecordedStep even = recorded(1), uneven = recorded(2);
    const Instruction forward{Instruction::Op::forward, 0, 0};
    const int64_t microbatches = even.args.microbatches;
    CHECK(
        uneven.stage(0).of(forward, microbatches).flops >
        even.stage(0).of(forward, microbatches).flops
    );
    CHECK(compose_memory(uneven, 0).activations > compose_memory(even, 0).activations);
    CHECK(uneven.stage(0).kept() == even.stage(0).kept());
  }
}

TEST_CASE("a memory budget records what stages share once") {
  const auto peaks = [](const RecordedStep& step) {
    std::vector<int64_t> all;
    for (int64_t stage = 0; stage < step.args.stages; ++stage) {
      all.push_back(compose_memory(step, stage).working);
    }
    return all;
  };
  const auto step_of = [](const std::vector<std::string>& recompute) {
    std::vector<std::string> sets{"model.layers=8", "batch.micro=2", "batch.global=16"};
    sets.insert(sets.end(), recompute.begin(), recompute.end());
    const Recipe recipe = small(sets, "pipeline=8");
    return record_step({.recipe = recipe, .host = small_host(), .world = 8});
  };
  const auto most = peaks(step_of({"recompute.use=none"}));
  const auto least = peaks(step_of({"recompute.use=full"}));
  // Between what the second stage takes with and without recomputation: later ones need none.
  const int64_t budget = (most[1] + std::max(least[1], least[0])) / 2;
  REQUIRE(budget > least[0]);
  const auto step = step_of(
      {"recompute.use=budget",
       "recompute.memory_gb=" + std::to_string(static_cast<double>(budget) / 1e9)}
  );
  for (const int64_t bytes : peaks(step)) {
    CHECK(bytes <= budget);
  }
  CHECK(step.records.size() > 3); // stages in the middle keep what fits
  // The first stage, the last, and those between: each by the five plans of its one layer at most.
  CHECK(step.recorded <= 15);
}

TEST_CASE("state of a shape of its own, and masters in fp32, have their bytes in the plan") {
  const int64_t numbers = 8 * static_cast<int64_t>(sizeof(double));
  for (const char* layout : {"tensor=2,data=2,zero=1", "data=2,zero=3"}) {
    compare({"optimizer.use=adafactor"}, layout, numbers);
    compare({"optimizer.use=schedule_free_adamw"}, layout, numbers);
    compare({"optimizer.use=soap", "optimizer.precondition_frequency=1"}, layout, numbers);
  }
  compare({"optimizer.use=adafactor", "optimizer.beta1=0.9", "precision=bf16"}, "", numbers);
  compare({"optimizer.use=schedule_free_adamw", "precision=bf16"}, "tensor=2", numbers);
}

TEST_CASE("experts, FP8 and state on the host plan, on machines of every kind") {
  ReadOptions roots;
  roots.roots = {std::filesystem::path(std::getenv("MEGAHOST_SOURCE")) / "recipes"};
  const std::vector<std::pair<std::vector<std::string>, std::string>> all{
      {{"model.use=moe"}, "expert=2,data=2"},
      {{"model.use=moe"}, "expert=2,tensor=2,sequence=true,expert_dispatch=all_gather"},
      {{"precision=fp8"}, "tensor=2,sequence=true"},
      {{"optimizer.offload=true", "precision=bf16"}, "data=2,zero=1"},
      {{"optimizer.use=lion", "optimizer.offload=true", "precision=bf16"}, "data=2,zero=1"},
      {{"optimizer.use=muon", "optimizer.offload=true", "precision=bf16"}, "data=2"},
      {{"optimizer.use=adafactor"}, "tensor=2,data=2,zero=1"},
      {{"optimizer.use=shampoo"}, "tensor=2,data=2,zero=1"},
      {{"optimizer.use=schedule_free_adamw", "optimizer.offload=true"}, "data=2,zero=3"}};
  for (const auto& [sets, layout] : all) {
    CAPTURE(layout);
    const Recipe recipe = small(sets, layout);
    const RecordedStep step = record_step(
        {.recipe = recipe,
         .host = small_host(),
         .world = recipe.parallel.ranks(),
         .device = at::kCUDA}
    );
    for (const char* name : {"h100", "trn1.32xlarge", "trn2.48xlarge", "a10g"}) {
      CAPTURE(name);
      const Plan plan = make_plan(step, recipe, find_machine(name, roots));
      CHECK(plan.step.products > 0);
      CHECK(plan.step.total > plan.step.products);
      CHECK(plan.stages[0].state >= 0);
      CHECK(plan.fits());
    }
  }
}

} // namespace planned_tests
