// Each collective of a training step is dropped in turn, conversions and sums of gradients alike:
// every one is missed by somebody, who names what differs.

#include "core/train/trial.hpp"
#include "megahost/error.hpp"
#include "tests/dist/small_recipe.hpp"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

using namespace mh;

namespace {

struct Finished : c10d::Work {
  bool isCompleted() override { return true; }

  bool isSuccess() const override { return true; }

  bool wait(std::chrono::milliseconds) override { return true; }
};

/// What all transports of a trial share: each rank's count, and the one that is dropped.
struct Plan {
  explicit Plan(int64_t dropped)
      : drop(dropped)
      , counts(16) {}

  int64_t drop; // number of a collective, the same on every rank; -1: none
  std::vector<std::atomic<int64_t>> counts;
  std::string dropped; // rank 0's
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
    if (dropped("all-gather")) {
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
    if (dropped("receive")) {
      work->wait();
      tensors[0].zero_();
    }
    return work;
  }

private:
  bool dropped(const char* name) {
    const int64_t number = plan_.counts[static_cast<size_t>(rank_)]++;
    if (number == plan_.drop && rank_ == 0) {
      plan_.dropped = std::string(name) + " in " + group_;
    }
    return number == plan_.drop;
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

/// Drops each collective of the first gradients in turn. Returns how many the checking mode found.
int64_t
drop_each(const std::string& model, const std::string& layout, std::string* first = nullptr) {
  const std::vector<std::string> settings{
      "model.use=" + model,
      "model.layers=1",
      "model.hidden=24",
      "model.heads=4",
      "model.kv_heads=2",
      "model.head_dim=6",
      "model.ffn_hidden=16",
      "model.vocab=500", // every rank of tp has some of it
      "model.seq_length=24",
      "model.init_std=0.3",
      "batch.global=2"};
  CAPTURE(layout);
  const Recipe recipe = small_recipe(settings, layout);
  Plan none(-1);
  const auto one = trial_on_threads(
      small_recipe(settings, ""), small_host(), {.dtype = at::kDouble, .steps = 0}
  );
  const auto whole = run(recipe, none, /*steps=*/0);
  const auto sound = compare_trials(one, whole, 1e-12, nullptr);
  CAPTURE(sound.where);
  CAPTURE(sound.worst);
  REQUIRE(sound.within());
  const int64_t count = none.counts[0];
  CHECK(count > 3);
  int64_t named = 0;
  for (int64_t i = 0; i < count; ++i) {
    Plan plan(i);
    std::string found;
    try {
      const auto difference = compare_trials(one, run(recipe, plan, 0), 1e-12, nullptr);
      found = difference.within() ? "" : difference.where;
    } catch (const Error& error) {
      found = error.what();
      ++named;
    }
    if (first != nullptr && first->empty()) {
      *first = found;
    }
    CAPTURE(i);
    CAPTURE(plan.dropped);
    CAPTURE(found);
    CHECK(found != "");
    if (plan.dropped.starts_with("reduce-scatter in tp") ||
        plan.dropped.starts_with("reduce-scatter in dp")) { // no two ranks hold the same of it
      CHECK(found.find(" lost or gained something ") != std::string::npos);
      const bool layer = found.starts_with("layers.") || found.starts_with("embedding.") ||
                         found.starts_with("head.");
      CHECK(layer);
    }
  }
  return named;
}

} // namespace

TEST_CASE("tensor parallel: every collective that is dropped is missed") {
  std::string first;
  CHECK(drop_each("gpt", "tensor=2", &first) > 0);
  CHECK(first.find("embedding.word.weight") != std::string::npos);
  CHECK(first.find("the ranks of tp") != std::string::npos);
  drop_each("llama", "tensor=2,sequence=true");
  drop_each("llama", "tensor=4,sequence=true"); // two ranks share a key head
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
