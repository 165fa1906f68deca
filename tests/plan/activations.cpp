// Activations of a layer, recorded from the step, next to the formulas of arXiv:2205.05198, section
// 4 (16 bits): once with that paper's attention, which keeps all its scores, and masks that are
// kept; once as the program is, with what it does not keep by name.

#include "core/plan/stage_record.hpp"
#include "core/plugin/catalogue.hpp"
#include "core/recipe/commands.hpp"
#include "core/recipe/resolve.hpp"
#include "core/session/built_in.hpp"
#include "megahost/host.hpp"
#include "megahost/strategy.hpp"

#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/softmax.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace activations_tests {

using namespace mh;

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct KeptMask : torch::autograd::Function<KeptMask> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    const at::Tensor mask = at::empty_like(x, x.options().dtype(at::kBool));
    ctx->save_for_backward({mask});
    return at::mul(x, mask);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    return {at::mul(gradients[0], ctx->get_saved_variables()[0])};
  }
};

/// Attention in three kernels: its scores, in 16 bits, and their mask stay until backward.
class UnfusedAttention : public AttentionMethod {
public:
  [[nodiscard]] at::Tensor
  attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double, const ops::KernelMask&, const ops::KernelDropout&, StepContext&)
      const override {
    const auto s = q.size(0), b = q.size(1), a = q.size(2), d = q.size(3);
    const auto by_head = [&](const at::Tensor& x) {
      return x.permute({1, 2, 0, 3}).reshape({b * a, s, d});
    };
    const at::Tensor scores = at::bmm(by_head(q), by_head(k).transpose(1, 2));
    const at::Tensor shares = KeptMask::apply(scores.softmax(-1));
    return at::bmm(shares, by_head(v)).view({b, a, s, d}).permute({2, 0, 1, 3});
  }
};

/// The strategy of every run, and the attention of the source.
class DataAndAttention : public Strategy {
public:
  struct Config {};

  static void fields(Fields<Config>&) {}

  static bool in_force(const Config&) { return true; }

  DataAndAttention(const Config&, const Args&) {}

  void rules(Rules& rules) const override {
    rules.tokens.push_back({axis::batch, MeshAxis::dp});
    rules.attention = std::make_shared<UnfusedAttention>();
  }
};

/// The operator `dropout` keeps the mask of each site from its forward pass to its backward pass,
/// while the object lives.
class KeptMasks {
public:
  KeptMasks()
      : library_(torch::Library::IMPL, "megahost", c10::DispatchKey::Meta, __FILE__, __LINE__) {
    kept().clear();
    library_.impl("dropout", &dropout);
  }

private:
  static std::map<int64_t, at::Tensor>& kept() {
    static std::map<int64_t, at::Tensor> masks;
    return masks;
  }

  static at::Tensor dropout(
      const at::Tensor& x, double, int64_t site, const at::Tensor&, const at::Tensor&, int64_t
  ) {
    if (kept().erase(site) == 0) {
      kept()[site] = at::empty(x.sizes(), x.options().dtype(at::kBool));
    }
    return at::empty_like(x);
  }

  torch::Library library_;
};

struct Shape {
  double s = 2048, b = 4, h = 6144, a = 64, t = 8; // 22B of table 3

  [[nodiscard]] double sbh() const { return s * b * h; }

  [[nodiscard]] double scores() const { return a * s * s * b; }
};

Recipe recipe_of(
    Host& host,
    const Shape& shape,
    int64_t layers,
    double attention_dropout,
    const std::vector<std::string>& more
) {
  const auto number = [](const char* key, double value) {
    return std::string(key) + "=" + std::to_string(static_cast<int64_t>(value));
  };
  std::vector<std::string> sets{
      "model.use=gpt",
      "data.use=mock",
      "device=cuda",
      "precision=bf16",
      "train.iters=10",
      "model.vocab=51200",
      "model.dropout=0.1",
      "model.attention_dropout=" + std::to_string(attention_dropout),
      number("model.seq_length", shape.s),
      number("model.hidden", shape.h),
      number("model.heads", shape.a),
      number("model.layers", static_cast<double>(layers)),
      number("batch.micro", shape.b),
      number("batch.global", shape.b),
      number("parallel.tensor", shape.t)};
  sets.insert(sets.end(), more.begin(), more.end());
  Loaded loaded{"test", {}, Value(Table{}), {}};
  for (const auto& set : sets) {
    loaded.layers.push_back(set_layer(set));
    loaded.merged = merge(loaded.merged, loaded.layers.back().tree);
  }
  return resolve(loaded, plugin_lookup(host), {}).recipe;
}

/// The bytes that the forward pass of a microbatch leaves behind, of one layer.
double
recorded(Host& host, const Shape& shape, double dropout, const std::vector<std::string>& more) {
  std::vector<double> left;
  for (const int64_t layers : {2, 4}) {
    const Recipe recipe = recipe_of(host, shape, layers, dropout, more);
    const RecordedStep step = record_step(
        {.recipe = recipe, .host = host, .world = recipe.parallel.ranks(), .device = at::kCUDA}
    );
    left.push_back(static_cast<double>(step.stage(0).of({Instruction::Op::forward, 0, 0}, 1).net));
  }
  return (left[1] - left[0]) / 2;
}

Host& sources() {
  static Host host = [] {
    Host made;
    merge_built_in(made);
    made.registry().add<DataAndAttention>("data", "as the source has it");
    return made;
  }();
  return host;
}

Host& own() {
  static Host host = [] {
    Host made;
    merge_built_in(made);
    return made;
  }();
  return host;
}

struct Row {
  const char* name;
  std::vector<std::string> sets;
  double t;
  double formula;
  std::vector<std::pair<const char*, double>> differs; // bytes of ours less the formula's
};

double near(double a, double b) {
  return std::abs(a / b - 1);
}

} // namespace

TEST_CASE("activations of a layer: the formulas of arXiv:2205.05198 and ours") {
  const Shape one{.t = 1};
  const Shape eight;
  const double sbh = one.sbh(), t = 8;
  const double tokens = one.s * one.b;
  const double scores = 5 * one.scores(), masks = 2 * sbh;
  const double queries = 4 * one.a * tokens; // a log-sum-exp in 32 bits for each
  const double norms = 2 * 2 * 4 * tokens;   // mean and deviation of two norms
  const char* kScores = "scores, made again";
  const char* kMasks = "masks, made again";
  const char* kQueries = "sums of attention";
  const char* kNorms = "statistics of norms";
  const std::vector<Row> rows{
      {"no parallelism",
       {},
       1,
       34 * sbh + scores,
       {{kScores, -scores}, {kMasks, -masks}, {kQueries, queries}, {kNorms, norms}}},
      {"tensor 8",
       {},
       t,
       10 * sbh + 24 * sbh / t + scores / t,
       {{kScores, -scores / t}, {kMasks, -masks}, {kQueries, queries / t}, {kNorms, norms}}},
      {"tensor 8, sequence",
       {"parallel.sequence=true"},
       t,
       (34 * sbh + scores) / t,
       {{kScores, -scores / t},
        {kMasks, -masks / t},
        {kQueries, queries / t},
        {kNorms, norms / t}}},
      {"tensor 8, sequence, attention again",
       {"parallel.sequence=true",
        "recompute.use=selective",
        "recompute.parts=[\"core_attention\"]"},
       t,
       34 * sbh / t,
       {{kMasks, -masks / t}, {kNorms, norms / t}}},
      {"tensor 8, all again", {"recompute.use=full"}, t, 2 * sbh, {}},
  };
  std::printf(
      "activations of a layer in MiB: 2,048 tokens x 4, hidden 6,144, 64 heads\n"
      "%-38s %10s %10s %8s %10s\n",
      "",
      "formula",
      "recorded",
      "",
      "our own"
  );
  for (const auto& row : rows) {
    CAPTURE(row.name);
    const Shape shape{.t = row.t};
    const double ours = recorded(own(), shape, 0, row.sets);
    double source = ours; // where everything is made again
    if (!row.differs.empty()) {
      const KeptMasks masked;
      source = recorded(sources(), shape, 0.1, row.sets);
    }
    double expected = row.formula;
    std::string parts;
    for (const auto& [name, bytes] : row.differs) {
      expected += bytes;
      char text[64];
      (void)std::snprintf(
          text, sizeof(text), "%s%s %+.1f", parts.empty() ? "  " : ", ", name, bytes / 1048576
      );
      parts += text;
    }
    std::printf(
        "%-38s %10.1f %10.1f %+7.2f%% %10.1f%s\n",
        row.name,
        row.formula / 1048576,
        source / 1048576,
        100 * (source / row.formula - 1),
        ours / 1048576,
        parts.c_str()
    );
    CHECK(near(source, row.formula) <= 0.01);
    CHECK(near(ours, expected) <= 0.002);
  }
}

TEST_CASE("norms that are made again leave their input alone, before parts or behind sums") {
  const Shape one{.t = 1};
  const double sbh = one.sbh(), queries = 4 * one.a * one.s * one.b;
  // In bytes of 16 bits: queries, keys, values and what attention makes of them (8), both GEMMs' inputs
  // in the feed-forward (16), the residual stream before each part (4); behind sums the first
  // part's input is kept, too: another layer made it.
  for (const auto& [placement, kept] : {std::pair("pre", 28), std::pair("post", 30)}) {
    CAPTURE(placement);
    const double found = recorded(
        own(),
        one,
        0,
        {std::string("model.norm_placement=") + placement,
         "model.dropout=0",
         "recompute.use=selective",
         "recompute.parts=[\"norms\"]"}
    );
    CHECK(near(found, kept * sbh + queries) <= 0.002);
  }
}

} // namespace activations_tests
