// Each collective of a training step is dropped in turn, conversions and sums of gradients alike:
// each is noticed by a rank, which names what differs.

#include "core/conformance/layout_trial.hpp"
#include "core/model/token_mixing.hpp"
#include "megahost/error.hpp"
#include "tests/dist/small_recipe.hpp"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace mutations_tests {

using namespace mh;

namespace {

struct Finished : c10d::Work {
  bool isCompleted() override { return true; }

  bool isSuccess() const override { return true; }

  bool wait(std::chrono::milliseconds) override { return true; }
};

/// A transfer whose tensor is lost on the way.
struct Lost : c10d::Work {
  Lost(c10::intrusive_ptr<c10d::Work> transfer, at::Tensor into)
      : inner(std::move(transfer))
      , tensor(std::move(into)) {}

  bool isCompleted() override { return inner->isCompleted(); }

  bool isSuccess() const override { return true; }

  bool wait(std::chrono::milliseconds timeout) override {
    inner->wait(timeout);
    tensor.zero_();
    return true;
  }

  c10::intrusive_ptr<c10d::Work> inner;
  at::Tensor tensor;
};

/// By group, or by rank that receives in it: how many operations it has begun.
using Counts = std::map<std::string, int64_t>;

/// The state that all transports of a trial share: each rank's counts, and the operation that is
/// dropped.
struct Plan {
  std::string where{}; // a key of the counts; empty: nothing is dropped
  int64_t number = 0;
  std::vector<Counts> counts{16};
  std::string dropped{}; // by the first member of its group, or by the rank that receives

  /// The counts of all ranks.
  [[nodiscard]] Counts all() const {
    Counts found;
    for (const auto& own : counts) {
      found.insert(own.begin(), own.end());
    }
    return found;
  }
};

/// A transport that leaves one collective out: each rank is left with what it had.
class Faulty : public c10d::Backend {
public:
  Faulty(c10::intrusive_ptr<c10d::Backend> inner, std::string group, int64_t rank, Plan& plan)
      : c10d::Backend(inner->getRank(), inner->getSize())
      , inner_(std::move(inner))
      , group_(std::move(group))
      , rank_(rank)
      , plan_(plan) {}

  const std::string getBackendName() const override { return inner_->getBackendName(); }

  c10::intrusive_ptr<c10d::Work>
  allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    // Comparisons by the largest value are the checking mode's own.
    if (options.reduceOp == c10d::ReduceOp::SUM && dropped("all-reduce")) {
      return done();
    }
    return inner_->allreduce(tensors, options);
  }

  c10::intrusive_ptr<c10d::Work> _allgather_base(
      at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options
  ) override {
    // Integers are words that ranks agree on, not the model's.
    if (input.is_floating_point() && dropped("all-gather")) {
      for (auto& piece : output.chunk(getSize(), 0)) {
        piece.copy_(input);
      }
      return done();
    }
    return inner_->_allgather_base(output, input, options);
  }

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options
  ) override {
    if (dropped("reduce-scatter")) {
      output.copy_(input.chunk(getSize(), 0)[static_cast<size_t>(getRank())]);
      return done();
    }
    return inner_->_reduce_scatter_base(output, input, options);
  }

  c10::intrusive_ptr<c10d::Work> alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& output_sizes,
      std::vector<int64_t>& input_sizes,
      const c10d::AllToAllOptions& options
  ) override {
    if (dropped("all-to-all")) {
      output.copy_(input);
      return done();
    }
    return inner_->alltoall_base(output, input, output_sizes, input_sizes, options);
  }

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    return inner_->send(tensors, to, tag);
  }

  c10::intrusive_ptr<c10d::Work>
  recv(std::vector<at::Tensor>& tensors, int from, int tag) override {
    auto work = inner_->recv(tensors, from, tag);
    if (dropped("receive", " by " + std::to_string(rank_))) {
      work = c10::make_intrusive<Lost>(std::move(work), tensors[0]);
    }
    return work;
  }

private:
  bool dropped(const char* name, const std::string& receiver = "") {
    if (MixingTrial::runs()) { // whose results are no part of the step
      return false;
    }
    const std::string where = group_ + receiver;
    const bool here =
        plan_.counts[static_cast<size_t>(rank_)][where]++ == plan_.number && where == plan_.where;
    if (here && (getRank() == 0 || !receiver.empty())) {
      plan_.dropped = std::string(name) + " in " + where;
    }
    return here;
  }

  static c10::intrusive_ptr<c10d::Work> done() { return c10::make_intrusive<Finished>(); }

  c10::intrusive_ptr<c10d::Backend> inner_;
  std::string group_;
  int64_t rank_;
  Plan& plan_;
};

TrialResult run(const Recipe& recipe, Plan& plan, int64_t steps) {
  return trial_on_threads(
      recipe,
      small_host(),
      {.dtype = at::kDouble, .steps = steps},
      [&](c10::intrusive_ptr<c10d::Backend> inner, const std::string& group, int64_t rank) {
        return c10::intrusive_ptr<c10d::Backend>(
            c10::make_intrusive<Faulty>(std::move(inner), group, rank, plan)
        );
      }
  );
}

/// Drops each collective of the first gradients in turn, in one group of ranks at a time. Returns
/// what found each.
std::vector<std::string> drop_each(
    const std::string& model,
    const std::string& layout,
    int64_t layers = 1,
    const std::vector<std::string>& more = {}
) {
  std::vector<std::string> settings{
      "model.use=" + model,
      "model.layers=" + std::to_string(layers),
      "model.hidden=24",
      "model.heads=4",
      "model.kv_heads=2",
      "model.head_dim=6",
      "model.ffn_hidden=16",
      "model.vocab=500",     // every rank of tp has some of it
      "model.seq_length=32", // each rank of a ring needs the keys of the other
      "model.init_std=0.3",
      "batch.global=2"};
  settings.insert(settings.end(), more.begin(), more.end());
  CAPTURE(layout);
  const Recipe recipe = small_recipe(settings, layout);
  Plan none;
  const auto one = trial_on_threads(
      small_recipe(settings, ""), small_host(), {.dtype = at::kDouble, .steps = 0}
  );
  const auto whole = run(recipe, none, /*steps=*/0);
  const auto sound = compare_trials(one, whole, 1e-12, nullptr);
  CAPTURE(sound.where);
  CAPTURE(sound.worst);
  REQUIRE(sound.within());
  std::vector<std::string> all;
  for (const auto& [where, count] : none.all()) {
    for (int64_t i = 0; i < count; ++i) {
      Plan plan{.where = where, .number = i};
      std::string found;
      try {
        const auto difference = compare_trials(one, run(recipe, plan, 0), 1e-12, nullptr);
        found = difference.within() ? "" : difference.where;
      } catch (const Error& error) {
        found = error.what();
      }
      all.push_back(found);
      CAPTURE(i);
      CAPTURE(plan.dropped);
      CAPTURE(found);
      CHECK(plan.dropped != "");
      CHECK(found != "");
      if (plan.dropped.starts_with("reduce-scatter in tp") ||
          plan.dropped.starts_with("reduce-scatter in dp")) { // no two ranks hold the same of it
        // In a trial of its mixing a block gives something else than the other times.
        const bool tried = found.find(" depends on other tokens' rows ") != std::string::npos;
        CHECK((tried || found.find(" lost or gained something ") != std::string::npos));
        const bool layer = found.starts_with("layers.") || found.starts_with("embedding.") ||
                           found.starts_with("head.");
        CHECK(layer);
      }
    }
  }
  CHECK(all.size() > 3);
  return all;
}

bool holds(const std::vector<std::string>& found, const std::string& text) {
  return std::any_of(found.begin(), found.end(), [&](const std::string& one) {
    return one.find(text) != std::string::npos;
  });
}

} // namespace

TEST_CASE("tensor parallel: every collective that is dropped is missed") {
  const auto found = drop_each("gpt", "tensor=2");
  CHECK(holds(found, "embedding.word.weight"));
  CHECK(holds(found, "the ranks of tp"));
  drop_each("llama", "tensor=2,sequence=true");
  drop_each("llama", "tensor=4,sequence=true"); // two ranks share a key head
  drop_each(
      "llama", "tensor=4,sequence=true", 1, {"model.qk_norm=true", "model.qk_norm_over=all_heads"}
  );
}

TEST_CASE("data and context parallel: every collective that is dropped is missed") {
  drop_each("gpt", "data=2");
  drop_each("gpt", "data=2,zero=1");
  drop_each("llama", "data=2,tensor=2,sequence=true,zero=2");
  drop_each("llama", "context=2,context_method=all_gather");
  drop_each("llama", "context=2,context_method=all_to_all");
  drop_each("llama", "context=2,context_method=ring");
  drop_each("llama", "data=2,tensor=2,sequence=true");
}

TEST_CASE("pipelines: every transfer and the sum of a tied embedding, dropped, are missed") {
  CHECK(holds(drop_each("gpt", "pipeline=2", 2), "embedding.word.weight"));
  drop_each("gpt", "pipeline=2,data=2,zero=1", 2);
  drop_each("llama", "pipeline=2,tensor=2,sequence=true,schedule=zb-h1", 2);
}

} // namespace mutations_tests
