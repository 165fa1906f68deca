// The cache of a text in generation: states of recurrent layers above all.

#include "megahost/nn/cache.hpp"

#include "megahost/error.hpp"
#include "megahost/model.hpp"
#include "tests/plugin/fixtures/recurrent.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <doctest/doctest.h>

#include <vector>

using namespace mh;

namespace {

constexpr int64_t kTokens = 12, kSamples = 2;

/// Tokens [begin, end) of two texts, read behind what the cache holds.
at::Tensor scores(const Model& model, int64_t begin, int64_t end, KeyValueCache* cache) {
  const at::NoGradGuard no_grad;
  const Mesh mesh;
  const Rules rules;
  const at::Tensor ids =
      (at::arange(kTokens * kSamples) * 7).remainder(19).view({kTokens, kSamples});
  const Batch batch{
      .arrays =
          {{"tokens", ids.slice(0, begin, end)},
           {"token_index", at::arange(begin, end, at::kLong)}},
      .samples = {0, 1},
      .seq = end - begin,
      .batch = kSamples};
  StepContext context(mesh, rules, batch, {.kv_cache = cache});
  return model.forward(context)["logits"].value;
}

} // namespace

TEST_CASE("a recurrent model reads a text in pieces of any length as at once") {
  const Mesh mesh;
  const Rules rules;
  const recurrent::Model architecture({}, {.vocab = 19, .seq_length = kTokens});
  const Model model(
      architecture,
      {.mesh = &mesh, .rules = &rules, .dtype = at::kDouble, .seq = kTokens, .microbatch = kSamples}
  );
  const at::Tensor whole = scores(model, 0, kTokens, nullptr);
  KeyValueCache cache(kTokens);
  for (const std::vector<int64_t>& ends :
       {std::vector<int64_t>{12},
        {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
        {5, 6, 12},
        {3, 4, 5, 12}}) {
    cache.restart(); // another text
    int64_t begin = 0;
    std::vector<at::Tensor> pieces;
    for (const int64_t end : ends) {
      pieces.push_back(scores(model, begin, end, &cache));
      begin = end;
    }
    CHECK((at::cat(pieces) - whole).abs().max().item<double>() < 1e-12);
  }
}

TEST_CASE("a state begins as zeros, has a row for each sample and a dtype of its own") {
  const Mesh mesh;
  const Rules rules;
  ParameterStore store;
  Builder builder(
      store,
      {.mesh = &mesh, .rules = &rules, .dtype = at::kBFloat16, .seq = 4, .microbatch = kSamples}
  );
  const CachedState state(builder, "state", {{axis::heads, 3, 2}, {axis::head_dim, 5}});
  const CachedState narrow(builder, "narrow", {{axis::mlp, 4}}, at::kBFloat16);
  const Batch batch{.arrays = {}, .samples = {0, 1}, .seq = 4, .batch = kSamples};
  KeyValueCache cache(4);
  StepContext alone(mesh, rules, batch);
  state.keep(at::zeros({1}), alone); // without a cache nothing is kept
  StepContext context(mesh, rules, batch, {.kv_cache = &cache});
  const at::Tensor first = state.before(context);
  CHECK(first.sizes() == at::IntArrayRef{kSamples, 6, 5});
  CHECK((first.scalar_type() == at::kFloat));
  CHECK(!first.any().item<bool>());
  CHECK((narrow.before(context).scalar_type() == at::kBFloat16));
  state.keep(first + 1, context);
  CHECK(state.before(context).eq(1).all().item<bool>());
  CHECK(!narrow.before(context).any().item<bool>());
  CHECK_THROWS_WITH_AS(
      state.keep(first.to(at::kBFloat16), context),
      doctest::Contains("the state state is [2, 6, 5] Float, but [2, 6, 5] BFloat16 is kept for it"
      ),
      InternalError
  );
  CHECK_THROWS_AS(state.keep(first[0], context), InternalError);
  cache.restart();
  CHECK(!state.before(context).any().item<bool>());
}

TEST_CASE("what is made once stays when a text begins anew") {
  KeyValueCache cache(4);
  int made = 0;
  for (int i = 0; i < 3; ++i) {
    const auto& one = cache.once(1, [&] {
      ++made;
      return std::vector<at::Tensor>{at::zeros({1})};
    });
    CHECK(one.size() == 1);
    cache.restart();
  }
  CHECK(made == 1);
}
