// Mixtures of experts under layouts, both dispatchers, against one rank.

#include "core/train/trial.hpp"
#include "megahost/error.hpp"
#include "tests/dist/small_recipe.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace mh;

namespace {

std::vector<std::string> tiny(std::vector<std::string> more) {
  std::vector<std::string> settings{
      "model.use=moe",
      "model.layers=2",
      "model.hidden=48",
      "model.head_dim=4",
      "model.ffn_hidden=36",
      "model.expert_hidden=20",
      "model.vocab=500",
      "model.seq_length=48",
      "model.init_std=0.2"};
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

/// Holds layouts against one rank, in float64 to 1e-12.
void check(const std::vector<std::string>& more, const std::vector<std::string>& layouts) {
  Host& host = small_host();
  const auto model = tiny(more);
  const TrialOptions options{.dtype = at::kDouble, .steps = 2};
  const auto one = trial_on_threads(small_recipe(model, ""), host, options);
  CHECK(one.loss > 1);
  for (const auto& layout : layouts) {
    CAPTURE(layout);
    const auto other = trial_on_threads(small_recipe(model, layout), host, options);
    const auto difference = compare_trials(one, other, 1e-12, nullptr);
    CAPTURE(difference.where);
    CAPTURE(difference.worst);
    CHECK(difference.within());
  }
}

std::vector<std::string> both_ways(const std::vector<std::string>& layouts) {
  std::vector<std::string> all = layouts;
  for (const auto& layout : layouts) {
    all.push_back(layout + ",expert_dispatch=all_gather");
  }
  return all;
}

} // namespace

TEST_CASE("experts 2, 4 and 8 over data ranks") {
  check(
      {}, both_ways({"expert=2,data=2", "expert=2,data=4", "expert=4,data=4", "expert=8,data=8"})
  );
}

TEST_CASE("experts beside tensor, sequence, context, pipeline and zero") {
  check(
      {},
      both_ways(
          {"tensor=2",
           "tensor=2,expert=2",
           "tensor=2,sequence=true,expert=2",
           "tensor=2,sequence=true,data=2,expert=4,zero=1",
           "tensor=2,data=2,expert=2,expert_tensor=2",
           "context=2,expert=2",
           "context=2,tensor=2,sequence=true,expert=4",
           "pipeline=2,data=2,expert=2",
           "pipeline=2,data=2,expert=2,schedule=zb-h1",
           "expert=2,data=4,zero=1",
           "expert=2,data=4,zero=2"}
      )
  );
}

TEST_CASE("experts that are cut: expert tensor 2, and 1 under tensor 2") {
  check(
      {},
      both_ways(
          {"tensor=2,expert_tensor=2",
           "data=2,expert_tensor=2",
           "data=4,expert=2,expert_tensor=2",
           "tensor=2,sequence=true,data=2,expert=2,expert_tensor=2"}
      )
  );
}

TEST_CASE("capacity drops the same tokens in every layout, recomputed too") {
  const std::vector<std::string> layouts{
      "expert=2,data=2",
      "context=2,expert=2",
      "tensor=2,sequence=true,context=2,expert=4,expert_dispatch=all_gather",
      "tensor=2,expert=2"};
  check(
      {"model.capacity_factor=0.7", "model.capacity_drop=probability", "recompute.use=full"},
      layouts
  );
  check(
      {"model.capacity_factor=1.2", "model.capacity_drop=position", "model.capacity_pad=true"},
      layouts
  );
}

TEST_CASE("every router and balance, shared experts, few experts that most ranks' tokens choose") {
  const std::vector<std::string> layouts{
      "expert=2,data=2", "tensor=2,sequence=true,context=2,expert=4"};
  check(
      {"model.router=sigmoid",
       "model.router_groups=4",
       "model.router_groups_chosen=2",
       "model.router_scale=2.5",
       "model.balance=[\"bias\", \"sequence\"]",
       "model.balance_bias_rate=0.05",
       "model.z_weight=0.01",
       "model.shared_hidden=24",
       "model.shared_gate=true"},
      layouts
  );
  check(
      {"model.router=softmax_topk",
       "model.experts_per_token=1",
       "model.moe_pattern=[\"dense\", \"moe\"]"},
      layouts
  );
}
