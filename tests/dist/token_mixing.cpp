// Blocks that mix tokens where ranks hold different ones are found, whatever they mix, unless they
// say so.

#include "core/model/token_mixing.hpp"

#include "core/mesh/threads.hpp"
#include "megahost/error.hpp"
#include "megahost/gradients.hpp"
#include "megahost/nn/attention.hpp"
#include "megahost/nn/tokens_before.hpp"
#include "tests/dist/placed.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace token_mixing_tests {

using namespace mh;

namespace {

constexpr int64_t kBatch = 2, kEmbed = 4;
const Axis kHidden{axis::embed, kEmbed};

using Layer = std::function<at::Tensor(const at::Tensor& x, StepContext& context)>;

/// x[t + by], zeros outside.
at::Tensor shifted(const at::Tensor& x, int64_t by) {
  const int64_t rows = x.size(0), kept = rows - std::abs(by);
  const at::Tensor none = at::zeros({std::abs(by), x.size(1), kEmbed}, x.options());
  return by > 0 ? at::cat({x.narrow(0, by, kept), none}) : at::cat({none, x.narrow(0, 0, kept)});
}

using Run = std::function<State(const State& state, StepContext& context)>;

struct Subject {
  MeshShape shape;
  bool sequence = false;
  int64_t rows = 8, batch = kBatch;
  bool documents = false;
};

/// The error about a block on the first rank; nothing if it is sound. `reads`: it is given
/// activations.
std::string said_of(const Subject& subject, bool reads, const Run& run) {
  std::string words;
  const auto [shape, sequence, rows, batch_size, documents] = subject;
  const int64_t seq = rows * shape.cp * (sequence ? shape.tp : 1);
  run_ranks(
      shape,
      [&, rows = rows, sequence = sequence, batch_size = batch_size, documents = documents](
          const Mesh& mesh
      ) {
        const Rules rules = rules_of(sequence);
        const int64_t tokens = seq / mesh.size(MeshAxis::cp);
        Batch batch{
            .arrays =
                {{"tokens", at::arange(tokens * batch_size).view({tokens, batch_size})},
                 {"labels", at::arange(tokens * batch_size).view({tokens, batch_size}) + 1},
                 {"loss_mask", at::ones({tokens, batch_size})}},
            .samples = std::vector<int64_t>(static_cast<size_t>(batch_size)),
            .seq = seq,
            .batch = batch_size};
        if (documents) {
          batch.arrays.emplace("segments", at::zeros({tokens, batch_size}, at::kLong));
        }
        const StepContext context(mesh, rules, batch);
        State state;
        if (reads) {
          state.set("hidden", at::rand({rows, batch_size, kEmbed}), context.dims(kHidden));
        }
        std::string found;
        try {
          const State result = check_token_mixing(
              {.name = "layers.0", .parameters = {}, .run = run}, state, context
          );
          if (reads && result.has("hidden")) {
            CHECK(result["hidden"].value.sizes() == state["hidden"].value.sizes());
            CHECK(!result["hidden"].value.requires_grad());
          }
        } catch (const Error& error) {
          found = error.what();
        }
        if (mesh.rank() == 0) {
          words = found;
        }
      }
  );
  return words;
}

std::string said(const Subject& subject, const Layer& layer) {
  return said_of(subject, true, [&](const State& input, StepContext& apart) {
    return input.with("hidden", layer(input["hidden"].value, apart));
  });
}

std::string said(const MeshShape& shape, bool sequence, int64_t rows, const Layer& layer) {
  return said({shape, sequence, rows}, layer);
}

/// The gradient of a token is the mean of all: what comes forward is as it was.
struct MeanGradient : torch::autograd::Function<MeanGradient> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.view_as(x);
  }

  static torch::autograd::variable_list
  backward(torch::autograd::AutogradContext*, const torch::autograd::variable_list& gradients) {
    return {gradients[0] + 0.01 * gradients[0].mean(0, /*keepdim=*/true)};
  }
};

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

at::Tensor attention(const at::Tensor& x, StepContext& context) {
  const at::Tensor q = x.view({x.size(0), x.size(1), 1, kEmbed});
  return attend(q, q, q, {.causal = true}, {}, context).view_as(x);
}

at::Tensor attended(const at::Tensor& x, StepContext& context) {
  return x + attention(x, context);
}

at::Tensor looked_back(const at::Tensor& x, StepContext& context) {
  ParameterStore store;
  Builder builder(
      store,
      {.mesh = &context.mesh(),
       .rules = &context.rules(),
       .seq = context.seq(),
       .microbatch = kBatch}
  );
  return TokensBefore(builder, "before", kHidden, 2).forward(x, context).back();
}

} // namespace

TEST_CASE("a block that shifts tokens by itself is found by name") {
  for (const int64_t rows : {2, 3, 8, 13}) {
    for (const int64_t by : {-1, 1, -2, 2, -3, 3, -6, 6, -7, 12}) {
      for (const int64_t batch : {1, 2, 5}) {
        CAPTURE(rows);
        CAPTURE(by);
        CAPTURE(batch);
        const auto layer = [by](const at::Tensor& x, StepContext&) { return x + shifted(x, by); };
        if (std::abs(by) < rows) {
          const std::string found = said({{.cp = 2}, false, rows, batch}, layer);
          CHECK(found.starts_with("layers.0: "));
          CHECK(
              holds(found, "of a token's row of") != holds(found, ": a token's row of its `hidden`")
          );
        }
      }
    }
  }
  const auto layer = [](const at::Tensor& x, StepContext&) { return x + shifted(x, -1); };
  CHECK(
      said({.tp = 2}, true, 8, layer).find("the ranks of tp hold different tokens") !=
      std::string::npos
  );
}

TEST_CASE("a share that is still zero hides nothing") {
  const auto layer = [](const at::Tensor& x, StepContext&) { return x + 0 * x.cumsum(0); };
  CHECK(said({.cp = 2}, false, 8, layer) != "");
}

TEST_CASE("mixing in addition to attention is found, also with what was gathered") {
  const auto layer = [](const at::Tensor& x, StepContext& context) {
    return attended(shifted(x, -1), context);
  };
  CHECK(said({.cp = 2}, false, 8, layer) != "");
  // In a branch, too, where the residual stays as it is.
  const auto before_attention = [](const at::Tensor& x, StepContext& context) {
    return x + attention(x + shifted(x, -1), context);
  };
  CHECK(said({.cp = 2}, false, 8, before_attention) != "");
  const auto before_whole = [](const at::Tensor& x, StepContext& context) {
    return x + looked_back(x + shifted(x, -1), context);
  };
  CHECK(said({.cp = 2}, false, 8, before_whole) != "");
  const auto mean = [](const at::Tensor& x, StepContext& context) {
    const AllTokens all(kHidden);
    return x + all.gather(x, context).mean(0, true) + x.mean(0, true);
  };
  CHECK(said({.cp = 2}, false, 8, mean) != "");
}

TEST_CASE("what says that it mixes tokens passes, as does what computes tokens one by one") {
  CHECK(said({.cp = 2}, false, 8, attended) == "");
  const auto alone = [](const at::Tensor& x, StepContext&) { return x.softmax(-1).mul(2); };
  CHECK(said({.tp = 2}, true, 8, alone) == "");
  const auto whole = [](const at::Tensor& x, StepContext& context) {
    const AllTokens all(kHidden);
    return all.own(all.gather(x, context).cumsum(0), context);
  };
  CHECK(said({.cp = 2}, false, 8, whole) == "");
  const auto before = [](const at::Tensor& x, StepContext& context) {
    return x + looked_back(x, context);
  };
  CHECK(said({.cp = 2}, false, 8, before) == "");
}

TEST_CASE("a block whose results are no numbers anyway is reported by other checks") {
  const auto layer = [](const at::Tensor& x, StepContext&) {
    return x * std::numeric_limits<double>::quiet_NaN();
  };
  CHECK(said({.cp = 2}, false, 8, layer) == "");
}

TEST_CASE("where no rank lacks a token of a sample, nothing is refused") {
  const auto layer = [](const at::Tensor& x, StepContext&) { return x + shifted(x, -1); };
  CHECK(said({.dp = 1, .tp = 2}, false, 8, layer) == "");
}

TEST_CASE("documents of one sample must not meet, on one rank too") {
  const Subject subject{.shape = {}, .documents = true};
  const auto layer = [](const at::Tensor& x, StepContext&) { return x + shifted(x, -1); };
  CHECK(holds(said(subject, layer), "declared, and a sample may hold several documents"));
  const auto before = [](const at::Tensor& x, StepContext& context) {
    return x + looked_back(x, context);
  };
  CHECK(said(subject, before) == "");
  CHECK(said(subject, attended) == "");
}

TEST_CASE("what hides NaN hides no mixing") {
  const std::vector<Layer> layers{
      [](const at::Tensor& x, StepContext&) { // a gate by comparison: NaN compares as false
        return x * x.sum(-1, true).gt(x.sum(-1, true).mean(0, true)).to(x.scalar_type());
      },
      [](const at::Tensor& x, StepContext&) { return std::get<0>(x.sort(0)); },
      [](const at::Tensor& x, StepContext&) {
        return x.index_select(0, x.sum({1, 2}).argsort());
      },
      [](const at::Tensor& x, StepContext&) { return x + x.nan_to_num(0).mean(0, true); },
      [](const at::Tensor& x, StepContext&) { return x - x.nanmean(0, true); },
      [](const at::Tensor& x, StepContext&) { // statistics of a batch, by which it is normalised
        return (x - x.mean(at::IntArrayRef{0, 1}, true)) /
               x.std(at::IntArrayRef{0, 1}, false, true);
      },
      [](const at::Tensor& x, StepContext&) { return x.flip(0); },
      [](const at::Tensor& x, StepContext&) { return x.roll(1, 0); },
      [](const at::Tensor& x, StepContext&) { return x.cumsum(0); },
  };
  for (size_t i = 0; i < layers.size(); ++i) {
    CAPTURE(i);
    CHECK(said({.cp = 2}, false, 8, layers[i]) != "");
    CHECK(said({.tp = 2}, true, 8, layers[i]) != "");
    CHECK(said({.cp = 2, .tp = 2}, true, 4, layers[i]) != "");
  }
}

TEST_CASE("mixing in the backward pass alone is found, and where gradients are made alone") {
  const auto backward = [](const at::Tensor& x, StepContext&) { return MeanGradient::apply(x); };
  CHECK(holds(said({.cp = 2}, false, 8, backward), "the gradient of a token's row"));
  const auto detached = [](const at::Tensor& x,
                           StepContext&) { // a scale that is 1, but for gradients
    const at::Tensor mean = x.mean(0, true);
    return x * (mean - mean.detach() + 1);
  };
  CHECK(said({.tp = 2}, true, 8, detached) != "");
  const auto training = [](const at::Tensor& x, StepContext&) {
    return at::GradMode::is_enabled() ? x + x.mean(0, true) : x.clone();
  };
  CHECK(said({.cp = 2}, false, 8, training) != "");
}

TEST_CASE("a head that takes a label or a row of another token is found") {
  const auto head = [](const auto& rows, const auto& labels, bool mean) {
    return [=](const State& state, StepContext& context) -> State {
      const at::Tensor x = rows(state["hidden"].value);
      const at::Tensor y = labels(context.array("labels")).to(x.scalar_type()).unsqueeze(-1);
      const at::Tensor mask = context.array("loss_mask");
      at::Tensor sum = ((x - y * 0.01).square().sum(-1) * mask).sum();
      sum = mean ? sum / mask.sum() : sum;
      context.add_loss({.name = "loss", .sum = sum, .over = "loss_mask"});
      return {};
    };
  };
  const auto same = [](const at::Tensor& x) { return x; };
  const auto rolled = [](const at::Tensor& x) { return x.roll(-1, 0); };
  const auto pooled = [](const at::Tensor& x) { return x.mean(0, true).expand_as(x); };
  const Subject cp{.shape = {.cp = 2}};
  CHECK(said_of(cp, true, head(same, same, false)) == "");
  CHECK(said_of(cp, true, head(same, rolled, false)) != "");
  CHECK(said_of(cp, true, head(rolled, same, false)) != "");
  CHECK(said_of(cp, true, head(pooled, same, false)) != "");
  CHECK(said_of(cp, true, head(same, same, true)) != "");
}

TEST_CASE("an embedding that reads tokens of others is found") {
  const auto embedding = [](bool pairs) {
    return [pairs](const State&, StepContext& context) -> State {
      at::Tensor ids = context.array("tokens");
      ids = pairs ? ids * 31 + ids.roll(1, 0) : ids;
      const at::Tensor x = ids.to(at::kFloat).unsqueeze(-1).expand({-1, -1, kEmbed}) * 0.01;
      return {"hidden", x, context.dims(kHidden)};
    };
  };
  CHECK(said_of({.shape = {.cp = 2}}, false, embedding(false)) == "");
  CHECK(said_of({.shape = {.cp = 2}}, false, embedding(true)) != "");
}

TEST_CASE("parameters get no gradient of a trial, and are trained afterwards") {
  run_ranks({.cp = 2}, [](const Mesh& mesh) {
    const Rules rules = rules_of(false);
    ParameterStore store;
    Builder builder(store, {.mesh = &mesh, .rules = &rules, .seq = 8, .microbatch = kBatch});
    Parameter& share =
        builder.parameter({{"share", {kHidden}, Init::ones()}}, builder.place(kHidden));
    const Gradients gradients(store, mesh);
    const Batch batch{
        .arrays = {{"tokens", at::zeros({4, kBatch}, at::kLong)}},
        .samples = {0, 1},
        .seq = 8,
        .batch = kBatch};
    const StepContext context(mesh, rules, batch);
    const State state("hidden", at::rand({4, kBatch, kEmbed}), context.dims(kHidden));
    const auto run = [&](const State& input, StepContext&) {
      return input.with("hidden", input["hidden"].value * share.value);
    };
    (void
    )check_token_mixing({.name = "layers.0", .parameters = {&share}, .run = run}, state, context);
    CHECK(share.value.requires_grad());
    CHECK(!share.main_grad.any().item<bool>());
  });
}

} // namespace token_mixing_tests
