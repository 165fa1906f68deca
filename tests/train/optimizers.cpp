// The optimizers as plugins: compared with formulas in float64, under stochastic rounding, and
// where ranks have split a matrix.

#include "core/mesh/threads.hpp"
#include "core/step/weights.hpp"
#include "megahost/gradients.hpp"
#include "megahost/model.hpp"
#include "megahost/nn/decoder.hpp"
#include "megahost/optimizer.hpp"
#include "megahost/random.hpp"
#include "runs.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/accumulate.h>

#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <mutex>

using mh::Table;

namespace {

mh::UpdateItem item(mh::Optimizer& optimizer, double weight_decay, double multiplier = 1) {
  mh::UpdateItem item;
  item.weight = at::linspace(-1, 1, 37);
  item.gradient = at::linspace(0.5, -0.25, 37);
  item.weight_decay = weight_decay;
  item.lr_multiplier = multiplier;
  for (const auto& spec : optimizer.state()) {
    item.state.push_back(at::zeros_like(item.weight, item.weight.options().dtype(spec.dtype)));
  }
  return item;
}

} // namespace

TEST_CASE("adamw follows its paper") {
  auto host = runs::host();
  const auto adamw = host.make<mh::Optimizer>("adamw", Table{{"eps", 1e-3}});
  for (const double decay : {0.0, 0.1}) {
    auto updated = item(*adamw, decay, 0.5);
    auto w = updated.weight.to(at::kDouble);
    auto m = at::zeros_like(w);
    auto v = at::zeros_like(w);
    for (int64_t step = 1; step <= 3; ++step) {
      const double scale = 0.25;
      updated.gradient = at::linspace(0.5, -0.25, 37);
      const auto g = updated.gradient.to(at::kDouble) * scale;
      adamw->update({&updated, 1}, {.step = step, .lr = 0.02, .gradient_scale = scale});
      m = m * 0.9 + g * 0.1;
      v = v * 0.95 + g * g * 0.05;
      const auto direction =
          (m / (1 - std::pow(0.9, step))) / ((v / (1 - std::pow(0.95, step))).sqrt() + 1e-3);
      w = w * (1 - 0.01 * decay) - direction * 0.01;
    }
    CHECK(at::allclose(updated.weight.to(at::kDouble), w, 1e-5, 1e-6));
    CHECK(at::allclose(updated.state[1].to(at::kDouble), v, 1e-5, 1e-9));
  }
  CHECK(
      runs::refusal<mh::Optimizer>(
          host, "adamw", {{"betas", mh::Value::Array{0.9}}}
      ).find("two numbers") != std::string::npos
  );
  CHECK(
      runs::refusal<mh::Optimizer>(
          host, "adamw", {{"betas", mh::Value::Array{0.9, 1.0}}}
      ).find("below 1") != std::string::npos
  );
}

namespace {

/// A tensor of `shape` with its state, in float64.
mh::UpdateItem start_of(
    const mh::Optimizer& optimizer, const std::string& name, const std::vector<int64_t>& shape
) {
  mh::UpdateItem item;
  item.name = name;
  const int64_t elements = c10::multiply_integers(shape);
  item.weight = (at::arange(elements, at::kDouble) * 0.9).cos().view(shape);
  for (const auto& spec : optimizer.state_of(name, shape)) {
    item.state.push_back(at::zeros(spec.shape.empty() ? shape : spec.shape, at::kDouble));
  }
  return item;
}

at::Tensor gradient_of(const mh::UpdateItem& item, int64_t step) {
  return (at::arange(item.weight.numel(), at::kDouble) * 1.7 + static_cast<double>(step))
      .sin()
      .view(item.weight.sizes());
}

} // namespace

// The figures are those of transformers.Adafactor 5.23 and torch.optim.Adafactor 2.11 after three
// steps from `start_of` by `gradient_of`, with learning rates 0.02, 0.9 and 0.03.
TEST_CASE("adafactor has the numbers of transformers and of torch.optim") {
  struct Case {
    Table options;
    double decay;
    /// The sum of w[i] (i + 1), and the last weight: of a matrix 3 x 4, a vector of 5, and two
    /// matrices 3 x 2.
    std::array<std::pair<double, double>, 3> expected;
  };

  const Case cases[] = {
      {{{"scale_parameter", false}},
       0,
       {{{-20.046526330679946, -2.077929277964938},
         {-10.966783978352765, -1.5502119939803212},
         {-20.1601781346423, -1.9821861381558343}}}},
      {{{"beta1", 0.9}, {"clip_threshold", 0.5}, {"decay_rate", -0.7}},
       0,
       {{{-13.502704389766425, -0.9725864569093752},
         {-6.864711935772558, -0.9478629472772016},
         {-13.519687142051026, -0.9666827930766605}}}},
      {{{"relative_step", true}},
       0.1,
       {{{-15.926010053560269, -1.495872826532358},
         {-8.609146357240494, -1.2028786669505918},
         {-15.99029965909171, -1.4398082869999445}}}}};
  const std::vector<std::pair<std::string, std::vector<int64_t>>> shapes{
      {"layers.0.mlp.up.weight", {3, 4}},
      {"layers.0.norm.weight", {5}},
      {"layers.0.mlp.experts.up.weight", {2, 3, 2}}};
  auto host = runs::host();
  for (const auto& [options, decay, expected] : cases) {
    const auto adafactor = host.make<mh::Optimizer>("adafactor", options);
    for (size_t i = 0; i < shapes.size(); ++i) {
      auto item = start_of(*adafactor, shapes[i].first, shapes[i].second);
      item.weight_decay = decay;
      for (int64_t step = 1; step <= 3; ++step) {
        item.gradient = gradient_of(item, step) * 4; // the scale takes it away
        const double lr = step == 1 ? 0.02 : step == 2 ? 0.9 : 0.03;
        adafactor->update({&item, 1}, {.step = step, .lr = lr, .gradient_scale = 0.25});
      }
      const auto w = item.weight.flatten();
      const auto places = at::arange(1, w.numel() + 1, at::kDouble);
      CAPTURE(i);
      CHECK((w * places).sum().item<double>() == doctest::Approx(expected[i].first).epsilon(1e-9));
      CHECK(w[-1].item<double>() == doctest::Approx(expected[i].second).epsilon(1e-9));
    }
  }
}

TEST_CASE("adafactor keeps rows and columns of matrices, and refuses what means nothing") {
  auto host = runs::host();
  const auto adafactor = host.make<mh::Optimizer>("adafactor");
  const auto shapes = [&](const std::string& name, const std::vector<int64_t>& shape) {
    std::vector<std::vector<int64_t>> all;
    for (const auto& spec : adafactor->state_of(name, shape)) {
      all.push_back(spec.shape);
    }
    return all;
  };
  using Shapes = std::vector<std::vector<int64_t>>;
  CHECK(shapes("head.weight", {4, 6}) == Shapes{{4}, {6}});
  CHECK(shapes("layers.0.mlp.experts.up.weight", {2, 4, 6}) == Shapes{{2, 4}, {2, 6}});
  CHECK(shapes("layers.0.norm.weight", {4}) == Shapes{{}}); // the parameter's
  CHECK(shapes("layers.0.mlp.experts.down.bias", {8, 4}) == Shapes{{}});
  const auto refused = [&](const Table& options, const mh::Optimizer::Args& args = {}) {
    return runs::refusal<mh::Optimizer>(host, "adafactor", options, args);
  };
  CHECK(refused({{"decay_rate", 0.8}}).find("decay_rate") != std::string::npos);
  CHECK(refused({{"eps", mh::Value::Array{1e-3}}}).find("two numbers") != std::string::npos);
  CHECK(
      refused({}, {.state_dtype = at::kBFloat16}).find("without optimizer.beta1") !=
      std::string::npos
  );
  CHECK(refused({{"beta1", 0.9}}, {.state_dtype = at::kBFloat16}) == "accepted");
}

// The form of schedulefree.AdamWScheduleFree, which keeps y and z.
TEST_CASE("schedule-free AdamW trains on y and keeps the average x") {
  auto host = runs::host();
  const double beta1 = 0.8, beta2 = 0.99, eps = 1e-6, decay = 0.1, r = 0.5, power = 1.5;
  const auto optimizer = host.make<mh::Optimizer>(
      "schedule_free_adamw",
      Table{
          {"betas", mh::Value::Array{beta1, beta2}},
          {"eps", eps},
          {"r", r},
          {"weight_lr_power", power}}
  );
  CHECK(optimizer->keeps_other_weights());
  auto item = start_of(*optimizer, "w", {3, 4});
  item.parameter = item.weight.clone();
  item.weight_decay = decay;
  item.lr_multiplier = 0.5;
  at::Tensor y = item.weight.clone(), z = item.weight.clone(), v = at::zeros_like(y);
  double most = 0, sum = 0;
  for (int64_t step = 1; step <= 4; ++step) {
    const double given = step == 1 ? 0 : step == 2 ? 0.2 : 0.06; // warm-up from 0, then less
    const at::Tensor g = gradient_of(item, step);
    item.gradient = g * 4;
    optimizer->update({&item, 1}, {.step = step, .lr = given, .gradient_scale = 0.25});
    optimizer->set_parameters({&item, 1});
    const double lr = given * 0.5;
    most = std::max(most, lr);
    const double weight = std::pow(step, r) * std::pow(most, power);
    sum += weight;
    const double c = sum > 0 ? weight / sum : 0;
    v = v * beta2 + g * g * (1 - beta2);
    const at::Tensor u = g / ((v / (1 - std::pow(beta2, step))).sqrt() + eps) + y * decay;
    y = y + (z - y) * c + u * (lr * (beta1 * (1 - c) - 1));
    z = z - u * lr;
    CHECK(at::allclose(item.parameter, y, 1e-12, 1e-12));
    const at::Tensor x = y + (z - y) * (1 - 1 / beta1);
    CHECK(at::allclose(item.weight, x, 1e-12, 1e-12));
  }
  CHECK_FALSE(at::allclose(item.weight, y, 1e-3, 1e-3));
  CHECK(
      runs::refusal<mh::Optimizer>(
          host, "schedule_free_adamw", {{"betas", mh::Value::Array{1.0, 0.9}}}
      ).find("below 1") != std::string::npos
  );
}

TEST_CASE("lion follows its paper") {
  auto host = runs::host();
  const auto lion = host.make<mh::Optimizer>("lion");
  REQUIRE(lion->state().size() == 1);
  auto updated = item(*lion, 0.1, 0.5);
  auto w = updated.weight.to(at::kDouble);
  auto m = at::zeros_like(w);
  for (int64_t step = 1; step <= 3; ++step) {
    updated.gradient = at::linspace(0.5, step == 2 ? 0.25 : -0.25, 37);
    const auto g = updated.gradient.to(at::kDouble) * 0.25;
    lion->update({&updated, 1}, {.step = step, .lr = 0.02, .gradient_scale = 0.25});
    w = w - (at::sign(m * 0.9 + g * 0.1) + w * 0.1) * 0.01;
    m = m * 0.99 + g * 0.01;
  }
  CHECK(at::allclose(updated.weight.to(at::kDouble), w, 1e-5, 1e-6));
  CHECK(at::allclose(updated.state[0].to(at::kDouble), m, 1e-5, 1e-8));
  CHECK(
      runs::refusal<mh::Optimizer>(
          host, "lion", {{"betas", mh::Value::Array{0.9, 1.0}}}
      ).find("below 1") != std::string::npos
  );
}

TEST_CASE("sgd with and without momentum") {
  auto host = runs::host();

  struct Case {
    double momentum;
    bool nesterov;
  };

  for (const auto& [momentum, nesterov] : {Case{0, false}, Case{0.9, false}, Case{0.9, true}}) {
    const auto sgd =
        host.make<mh::Optimizer>("sgd", Table{{"momentum", momentum}, {"nesterov", nesterov}});
    CHECK(sgd->state().size() == (momentum > 0 ? 1U : 0U));
    auto updated = item(*sgd, 0.01);
    auto w = updated.weight.to(at::kDouble);
    auto v = at::zeros_like(w);
    for (int64_t step = 1; step <= 3; ++step) {
      updated.gradient = at::linspace(0.5, -0.25, 37);
      const auto g = updated.gradient.to(at::kDouble) * 0.5 + w * 0.01;
      sgd->update({&updated, 1}, {.step = step, .lr = 0.1, .gradient_scale = 0.5});
      v = v * momentum + g;
      w = w - (nesterov ? g + v * momentum : v) * 0.1;
    }
    CHECK(at::allclose(updated.weight.to(at::kDouble), w, 1e-5, 1e-6));
  }
  CHECK(
      runs::refusal<mh::Optimizer>(host, "sgd", {{"nesterov", true}}).find("momentum above 0") !=
      std::string::npos
  );
}

TEST_CASE("adam adds weight decay to the gradient") {
  auto host = runs::host();
  const auto adam = host.make<mh::Optimizer>("adam");
  auto updated = item(*adam, 0.1);
  auto w = updated.weight.to(at::kDouble);
  const auto g = updated.gradient.to(at::kDouble) + w * 0.1;
  adam->update({&updated, 1}, {.step = 1, .lr = 0.02});
  w = w - g / (g.abs() + 1e-8) * 0.02; // after one step the averages are the gradient's
  CHECK(at::allclose(updated.weight.to(at::kDouble), w, 1e-5, 1e-6));
}

TEST_CASE("an update sets the gradient to zero and rounds the weight into the parameter") {
  auto host = runs::host();
  for (const std::string name : {"adamw", "adam", "sgd", "muon"}) {
    const auto optimizer = host.make<mh::Optimizer>(name);
    REQUIRE(optimizer->finishes());
    auto updated = item(*optimizer, 0.1);
    updated.parameter = at::zeros_like(updated.weight, at::kBFloat16);
    optimizer->update({&updated, 1}, {.step = 1, .lr = 0.02});
    CAPTURE(name);
    CHECK(updated.gradient.count_nonzero().item<int64_t>() == 0);
    CHECK(at::equal(updated.parameter, updated.weight.to(at::kBFloat16)));
  }
}

TEST_CASE("muon takes orthogonal steps for matrices and AdamW's for the rest") {
  auto host = runs::host();
  const auto muon = host.make<mh::Optimizer>(
      "muon",
      Table{
          {"momentum", 0.5},
          {"nesterov", false},
          {"steps", 12},
          {"scale", "original"},
          {"precision", "fp32"}}
  );
  CHECK(muon->state_of("layers.0.mlp.up.weight", {4, 6}).size() == 1);
  CHECK(muon->state_of("head.weight", {4, 6}).size() == 2);
  CHECK(muon->state_of("layers.0.norm.weight", {4}).size() == 2);
  CHECK(muon->state_of("layers.0.mlp.experts.down.bias", {8, 4}).size() == 2);
  CHECK((muon->unit() == mh::Unit::matrix));
  mh::UpdateItem matrix;
  matrix.name = "layers.0.mlp.up.weight";
  matrix.weight = at::ones({9, 4}, at::kDouble);
  matrix.gradient = (at::arange(36, at::kDouble) * 7 % 11 - 5).view({9, 4});
  matrix.state = {at::zeros({9, 4}, at::kDouble)};
  matrix.weight_decay = 0.5;
  muon->update({&matrix, 1}, {.step = 1, .lr = 0.1});
  // sqrt(9 / 4) times the learning rate, and decay of 0.1 * 0.5
  const auto step = (at::ones({9, 4}, at::kDouble) * 0.95 - matrix.weight) / 0.15;
  const auto gram = at::matmul(step.t(), step);
  // singular values of the quintic's limit cycle lie between 0.68 and 1.13
  CHECK((gram.diagonal() - 1).abs().max().item<double>() < 0.6);
  CHECK((gram - gram.diagonal().diag()).abs().max().item<double>() < 0.45);
  CHECK(matrix.gradient.count_nonzero().item<int64_t>() == 0);
  CHECK(
      runs::refusal<mh::Optimizer>(host, "muon", {{"steps", 0}}).find("steps") != std::string::npos
  );
}

TEST_CASE("bf16 state is that of float32, rounded") {
  auto host = runs::host();
  for (const std::string name : {"adamw", "adam", "sgd"}) {
    const Table options = name == "sgd" ? Table{{"momentum", 0.9}} : Table{};
    const auto wide = host.make<mh::Optimizer>(name, options);
    const auto narrow = host.make<mh::Optimizer>(name, options, {.state_dtype = at::kBFloat16});
    auto a = item(*wide, 0.1);
    auto b = item(*narrow, 0.1);
    wide->update({&a, 1}, {.step = 1, .lr = 0.02});
    narrow->update({&b, 1}, {.step = 1, .lr = 0.02});
    CHECK(at::equal(a.weight, b.weight)); // the step itself is not rounded
    for (size_t s = 0; s < a.state.size(); ++s) {
      CHECK((b.state[s].scalar_type() == at::kBFloat16));
      CHECK(at::equal(b.state[s], a.state[s].to(at::kBFloat16)));
    }
  }
}

namespace {

/// A weight of 1.5 in bf16, whose neighbour above is 1 / 128 away, that grows by 1 / 1024.
mh::UpdateItem growing(int64_t rows, int64_t columns) {
  mh::UpdateItem item;
  item.name = "layers.0.mlp.up.weight";
  item.weight = at::full({rows, columns}, 1.5, at::kBFloat16);
  item.gradient = at::full({rows, columns}, -1.0);
  return item;
}

mh::UpdateRule descent() {
  return {.kind = mh::UpdateRule::Kind::sgd, .stochastic_rounding = true};
}

} // namespace

TEST_CASE("stochastic rounding is right in the mean, and as the counters say") {
  auto item = growing(64, 1024);
  mh::update_fused(descent(), {&item, 1}, {.step = 7, .lr = 1.0 / 1024, .seed = 5});
  const auto up = item.weight.to(at::kFloat).sub(1.5).mul(128);
  CHECK(up.eq(0).logical_or(up.eq(1)).all().item<bool>());
  CHECK(up.mean().item<double>() == doctest::Approx(0.125).epsilon(0.03)); // 6 deviations
  const uint64_t key = mh::random_key(5, item.name);
  for (const int64_t index : {0, 1, 77, 65535}) {
    const auto words = mh::philox(key, uint64_t{1} << 32 | static_cast<uint64_t>(index / 4), 7);
    const uint32_t bits = std::bit_cast<uint32_t>(1.5F + 1.0F / 1024);
    const uint32_t rounded = (bits + (words.at(static_cast<size_t>(index % 4)) & 0xffffU)) >> 16;
    CHECK(item.weight.flatten()[index].item<float>() == std::bit_cast<float>(rounded << 16));
  }
}

TEST_CASE("stochastic rounding is the same under every layout, and by plain ATen") {
  const mh::Update update{.step = 3, .lr = 1.0 / 1024, .seed = 11};
  auto whole = growing(10, 36);
  mh::update_fused(descent(), {&whole, 1}, update);
  for (const auto& [row, column, rows, columns] :
       {std::array<int64_t, 4>{0, 0, 10, 9}, {0, 9, 10, 27}, {7, 0, 3, 36}, {2, 5, 4, 6}}) {
    auto part = growing(rows, columns);
    part.global_shape = {10, 36};
    part.offset = {row, column};
    mh::update_fused(descent(), {&part, 1}, update);
    const auto expected = whole.weight.narrow(0, row, rows).narrow(1, column, columns);
    CHECK(at::equal(part.weight, expected));
    // a weight with gaps has no kernel
    auto plain = growing(columns, rows);
    plain.weight = plain.weight.t();
    plain.gradient = plain.gradient.t();
    plain.global_shape = part.global_shape;
    plain.offset = part.offset;
    mh::update_fused(descent(), {&plain, 1}, update);
    CHECK(at::equal(plain.weight, expected));
  }
  auto later = growing(10, 36);
  mh::update_fused(descent(), {&later, 1}, {.step = 4, .lr = 1.0 / 1024, .seed = 11});
  CHECK_FALSE(at::equal(later.weight, whole.weight));
}

TEST_CASE("an infinite value stays infinite under stochastic rounding") {
  auto item = growing(1, 4);
  item.gradient[0][1].fill_(-INFINITY);
  item.gradient[0][2].fill_(NAN);
  mh::update_fused(descent(), {&item, 1}, {.step = 1, .lr = 1});
  CHECK(item.weight[0][0].item<float>() == 2.5F);
  CHECK(std::isinf(item.weight[0][1].item<float>()));
  CHECK(std::isnan(item.weight[0][2].item<float>()));
}

namespace {

constexpr int64_t kSeq = 8;

mh::DecoderConfig llama() {
  mh::DecoderConfig c;
  c.layers = 2;
  c.hidden = 24;
  c.heads = 4;
  c.kv_heads = 1; // both ranks hold it
  c.ffn_hidden = 40;
  c.norm = "rmsnorm";
  c.activation = "swiglu";
  c.positions = "rope";
  c.bias = false;
  c.tied = false;
  return c;
}

/// Global weights after three steps on one batch. With a `multiple` of 128 the last of four tensor
/// ranks have none of the vocabulary.
std::map<std::string, at::Tensor>
trained(const mh::MeshShape& shape, const mh::Optimizer& optimizer, int64_t multiple) {
  std::map<std::string, at::Tensor> result;
  std::mutex mutex;
  mh::run_ranks(shape, [&](const mh::Mesh& mesh) {
    mh::Rules rules;
    for (const auto logical :
         {mh::axis::heads, mh::axis::kv_heads, mh::axis::mlp, mh::axis::vocab}) {
      rules.features.push_back({logical, mh::MeshAxis::tp});
    }
    const mh::Decoder decoder(llama(), {.vocab = 50, .seq_length = kSeq});
    mh::Model model(
        decoder,
        {.mesh = &mesh,
         .rules = &rules,
         .dtype = at::kDouble,
         .seed = 3,
         .seq = kSeq,
         .microbatch = 1,
         .vocab_multiple = multiple}
    );
    auto& parameters = model.parameters();
    mh::Gradients gradients(parameters, mesh, {.unit = optimizer.unit()});
    mh::Weights weights(gradients, optimizer, {.weight_decay = 0.1, .mesh = &mesh});
    const at::Tensor tokens = (at::arange(kSeq) * 7 % 50).unsqueeze(1);
    const mh::Batch batch{
        .arrays =
            {{"tokens", tokens},
             {"labels", (tokens * 3 + 1) % 50},
             {"loss_mask", at::ones({kSeq, 1})}},
        .samples = {0},
        .seq = kSeq,
        .batch = 1};
    for (int64_t step = 1; step <= 3; ++step) {
      mh::StepContext context(mesh, rules, batch);
      gradients.begin(/*microbatches=*/1);
      (void)model.forward(context);
      mh::backward(context.losses().at(0).sum / static_cast<double>(kSeq));
      gradients.finish();
      weights.update(optimizer, {.step = step, .lr = 0.02});
    }
    const std::scoped_lock lock(mutex);
    for (const auto& parameter : parameters.all()) {
      for (const auto& piece : parameter.pieces) {
        auto& whole = result[piece.name];
        if (!whole.defined()) {
          whole = at::zeros(piece.global_shape, at::kDouble);
        }
        at::Tensor slice = whole;
        for (size_t d = 0; d < piece.shape.size(); ++d) {
          slice = slice.narrow(static_cast<int64_t>(d), piece.offset[d], piece.shape[d]);
        }
        slice.copy_(parameter.view(parameter.value.detach(), piece));
      }
    }
  });
  return result;
}

} // namespace

TEST_CASE("optimizers give the same weights whether or not ranks have split the matrices") {
  auto host = runs::host();
  const std::pair<std::string, Table> all[] = {
      {"muon", {}},
      {"muon", {{"adamw", mh::Value::Array{}}}},
      {"adamw", {}},
      {"adafactor", {{"beta1", 0.9}}},
      {"schedule_free_adamw", {}},
      {"soap",
       {{"precondition_frequency", 1},
        {"damping", 0.01},
        {"eps", 1e-5},
        {"adamw", mh::Value::Array{}}}},
      {"shampoo", {{"precondition_frequency", 1}, {"adamw", mh::Value::Array{}}}}};
  for (const auto& [name, options] : all) {
    const auto optimizer = host.make<mh::Optimizer>(name, options);
    const auto one = trained({}, *optimizer, 4);
    for (const auto& [ranks, multiple] : {std::pair<int64_t, int64_t>{2, 4}, {4, 128}}) {
      const auto split = trained({.tp = ranks}, *optimizer, multiple);
      REQUIRE(split.size() == one.size());
      for (const auto& [weight, expected] : one) {
        CAPTURE(name);
        CAPTURE(weight);
        CHECK((split.at(weight) - expected).abs().max().item<double>() < 1e-11);
      }
    }
  }
}
