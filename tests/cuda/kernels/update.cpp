// The update of all parameters in one launch, on a CPU: against float64, and bit for bit against
// the CPU's own kernel without contraction of products and sums.

#include "core/level/table.hpp"
#include "tests/cuda/kernels/memory.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>

using namespace mh;
using cuda::GpuType;
using test::Elements;

namespace {

/// One parameter's memory.
struct Tensors {
  Elements weight, gradient, first, second, parameter;

  Tensors(GpuType weight_type, GpuType state_type, int64_t count, std::mt19937& random)
      : weight(weight_type, count)
      , gradient(GpuType::fp32, count)
      , first(state_type, count)
      , second(state_type, count)
      , parameter(GpuType::bf16, count) {
    weight.fill(random, 0, 1);
    gradient.fill(random, 0, 1);
    first.fill(random, 0, 0.5F);
    second.fill(random, 4, 0.5F); // above zero
  }

  Tensors(const Tensors& other, size_t gap)
      : weight(other.weight.copy(gap))
      , gradient(other.gradient.copy(gap))
      , first(other.first.copy(gap))
      , second(other.second.copy(gap))
      , parameter(other.parameter.copy(gap)) {}

  [[nodiscard]] bool same(const Tensors& other) const {
    return weight.same(other.weight) && gradient.same(other.gradient) && first.same(other.first) &&
           second.same(other.second) && parameter.same(other.parameter);
  }
};

struct Rule {
  std::string name;
  cuda::UpdateLaunch call;
};

std::vector<Rule> rules() {
  using enum UpdateKind;
  const cuda::UpdateLaunch base{
      .kind = adam,
      .decoupled = true,
      .beta1 = 0.9,
      .beta2 = 0.95,
      .eps = 1e-8,
      .scale = {0.5, nullptr},
      .step = {3, nullptr}};
  std::vector<Rule> all{
      {"adamw", base},
      {"adam", base},
      {"sgd", base},
      {"nesterov", base},
      {"average", base},
      {"average, nesterov", base}};
  all[1].call.decoupled = false;
  all[2].call.kind = all[3].call.kind = sgd;
  all[2].call.decoupled = false;
  all[4].call.kind = all[5].call.kind = average;
  all[3].call.nesterov = all[5].call.nesterov = true;
  for (auto& rule : all) {
    rule.call.rest1 = 1 - std::pow(base.beta1, 3);
    rule.call.rest2 = 1 - std::pow(base.beta2, 3);
  }
  return all;
}

constexpr double kRate = 0.25, kDecay = 0.125;

cuda::GpuItem item_of(const Tensors& t, uint64_t key = 77) {
  return {
      .weight = t.weight.data(),
      .first = t.first.data(),
      .second = t.second.data(),
      .gradient = static_cast<float*>(t.gradient.data()),
      .parameter = t.parameter.data(),
      .weight_type = t.weight.type(),
      .state_type = t.first.type(),
      .count = t.weight.count(),
      .first_chunk = 0,
      .place = 0,
      .places = 0,
      .key = key,
      .rate = {kRate, nullptr},
      .decay = {kDecay, nullptr}};
}

void update(
    cuda::UpdateLaunch call,
    std::vector<cuda::GpuItem> items,
    const std::vector<cuda::Place>& places = {}
) {
  call.chunks = 0;
  for (auto& item : items) {
    item.first_chunk = call.chunks;
    call.chunks += (item.count + cuda::kUpdateChunk - 1) / cuda::kUpdateChunk;
  }
  call.items = items.data();
  call.item_count = static_cast<int32_t>(items.size());
  call.places = places.data();
  CHECK(megahost_cuda_table()->update(call, nullptr) == nullptr);
}

/// The CPU's kernel on the same parameter, whose first element is at `origin` of its global tensor.
void update_on_cpu(const cuda::UpdateLaunch& call, const cuda::GpuItem& item, int64_t origin) {
  const auto& table = kernels::base::update_kernels();
  const bool narrow_state = item.state_type == GpuType::bf16;
  const auto run = item.weight_type == GpuType::fp32
                       ? (narrow_state ? table.fp32_bf16 : table.fp32)
                       : (narrow_state ? table.bf16 : table.bf16_fp32);
  const bool adam = call.kind == UpdateKind::adam;
  const auto narrow = [](double x) { return static_cast<float>(x); };
  run({.kind = call.kind,
       .nesterov = call.nesterov,
       .stochastic = call.stochastic && (narrow_state || item.weight_type == GpuType::bf16),
       .scale = narrow(call.scale.value),
       .keep = narrow(call.decoupled ? 1 - item.rate.value * item.decay.value : 1),
       .l2 = narrow(call.decoupled ? 0 : item.decay.value),
       .rate = narrow(adam ? item.rate.value / call.rest1 : item.rate.value),
       .beta1 = narrow(call.beta1),
       .rest1 = narrow(1 - call.beta1),
       .beta2 = narrow(call.beta2),
       .rest2 = narrow(1 - call.beta2),
       .root = narrow(adam ? 1 / std::sqrt(call.rest2) : 1),
       .eps = narrow(call.eps),
       .weight = item.weight,
       .first = item.first,
       .second = item.second,
       .gradient = item.gradient,
       .parameter = item.parameter,
       .key = item.key,
       .step = static_cast<uint64_t>(call.step.value),
       .origin = origin},
      0,
      item.count);
}

/// The result of UpdateRule's formulas for one element.
struct Exact {
  double weight, gradient, first, second;
};

Exact exact(const cuda::UpdateLaunch& c, const Tensors& t, int64_t i) {
  using enum UpdateKind;
  const double w = t.weight[i], m = t.first[i], v = t.second[i];
  double g = t.gradient[i] * c.scale.value;
  if (c.kind == average) {
    const double next = m + (1 - c.beta1) * (g - m);
    return {w, c.nesterov ? g + c.beta1 * (next - g) : next, next, v};
  }
  g += c.decoupled ? 0 : kDecay * w;
  const double kept = c.decoupled ? w - kRate * kDecay * w : w;
  if (c.kind == sgd) {
    const double next = c.beta1 * m + g;
    return {kept - kRate * (c.nesterov ? g + c.beta1 * next : next), 0, next, v};
  }
  const double first = m + (1 - c.beta1) * (g - m), second = v + (1 - c.beta2) * (g * g - v);
  const double size = std::sqrt(second / (1 - std::pow(c.beta2, c.step.value))) + c.eps;
  return {kept - kRate * first / (1 - std::pow(c.beta1, c.step.value)) / size, 0, first, second};
}

constexpr GpuType kTypes[] = {GpuType::fp32, GpuType::bf16};
constexpr int64_t kSizes[] = {1, 3, 4, 203, cuda::kUpdateChunk, cuda::kUpdateChunk + 5};

} // namespace

TEST_CASE("an update of ragged items in one launch is that of the formulas in float64") {
  std::mt19937 random(1);
  for (const auto& [name, call] : rules()) {
    for (const GpuType weight : kTypes) {
      for (const GpuType state : kTypes) {
        CAPTURE(name);
        CAPTURE(static_cast<int>(weight));
        CAPTURE(static_cast<int>(state));
        std::vector<Tensors> before, after;
        std::vector<cuda::GpuItem> items;
        for (const int64_t size : kSizes) {
          before.emplace_back(weight, state, size, random);
          after.emplace_back(before.back(), 0);
          items.push_back(item_of(after.back()));
        }
        update(call, items);
        double wide = 0, narrow = 0; // the worst differences of each type
        const auto see = [&](GpuType type, double made, double wanted) {
          double& worst = type == GpuType::fp32 ? wide : narrow;
          worst = std::max(worst, std::abs(made - wanted) / std::max(1.0, std::abs(wanted)));
        };
        for (size_t k = 0; k < before.size(); ++k) {
          for (int64_t i = 0; i < before[k].weight.count(); ++i) {
            const Exact wanted = exact(call, before[k], i);
            see(weight, after[k].weight[i], wanted.weight);
            see(state, after[k].first[i], wanted.first);
            see(state, after[k].second[i], wanted.second);
            see(GpuType::fp32, after[k].gradient[i], wanted.gradient);
            if (call.kind != UpdateKind::average) {
              see(GpuType::bf16, after[k].parameter[i], wanted.weight);
            }
          }
        }
        CHECK(wide < 1e-6);
        CHECK(narrow < 4e-3);
      }
    }
  }
}

TEST_CASE("an update has the bits of the CPU's kernel, stochastic rounding too") {
  std::mt19937 random(2);
  for (auto [name, call] : rules()) {
    for (const GpuType weight : kTypes) {
      for (const GpuType state : kTypes) {
        for (const bool stochastic : {false, true}) {
          CAPTURE(name);
          CAPTURE(stochastic);
          call.stochastic = stochastic;
          call.step.value = 5000000000.0; // more than 32 bits
          Tensors made(weight, state, cuda::kUpdateChunk + 203, random);
          const Tensors wanted(made, 0), apart(made, 4); // no packs are loaded from `apart`
          update(call, {item_of(made), item_of(apart)});
          update_on_cpu(call, item_of(wanted), 0);
          CHECK(made.same(wanted));
          CHECK(apart.same(wanted));
        }
      }
    }
  }
}

TEST_CASE("a slice of a global tensor is rounded as it is in the whole, beyond 32 bits too") {
  std::mt19937 random(3);
  cuda::UpdateLaunch call = rules().front().call;
  call.stochastic = true;
  constexpr int64_t kWide = int64_t{1} << 33;

  struct Slice {
    int64_t rows, columns, first_row, first_column, width;
  };

  for (const Slice& s :
       {Slice{3, 8, 2, 16, 64}, {3, 7, 1, 5, 21}, {2, 12, 1, 4, kWide}, {5, 6, 0, 0, 6}}) {
    CAPTURE(s.columns);
    Tensors made(GpuType::bf16, GpuType::bf16, s.rows * s.columns, random);
    const Tensors wanted(made, 0);
    auto item = item_of(made);
    item.places = 2;
    update(call, {item}, {{s.rows, s.rows + 9, s.first_row}, {s.columns, s.width, s.first_column}});
    for (int64_t row = 0; row < s.rows; ++row) {
      auto part = item_of(wanted);
      const auto from = row * s.columns;
      part.count = s.columns;
      part.gradient += from;
      for (void** memory : {&part.weight, &part.first, &part.second, &part.parameter}) {
        *memory = static_cast<uint16_t*>(*memory) + from;
      }
      update_on_cpu(call, part, (s.first_row + row) * s.width + s.first_column);
    }
    CHECK(made.same(wanted));
  }
}

TEST_CASE("numbers in memory are those of the host") {
  std::mt19937 random(4);
  for (auto [name, call] : rules()) {
    CAPTURE(name);
    Tensors host(GpuType::fp32, GpuType::fp32, 100, random);
    const Tensors memory(host, 0);
    update(call, {item_of(host)});
    const double scale = 2, step = 3, rate = 0.5, decay = 1;
    call.scale = {0.25, &scale};
    call.step = {1, &step};
    call.rest1 = call.rest2 = 0; // is not read
    auto item = item_of(memory);
    item.rate = {0.5, &rate};
    item.decay = {0.125, &decay};
    update(call, {item});
    CHECK(host.same(memory));
  }
}
