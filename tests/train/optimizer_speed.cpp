// How fast an optimizer's pass is, next to LibTorch's fused AdamW and a plain copy of memory.

#include "megahost/optimizer.hpp"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

namespace {

using Tensors = std::vector<at::Tensor>;

/// The parameters of a GPT-2 of 12 layers and 768 numbers, without the vocabulary: 85 million.
struct Model {
  Model() {
    for (int layer = 0; layer < 12; ++layer) {
      for (const int64_t rows : {2304, 768, 3072, 3072}) {
        add({rows, 768});
        add({rows});
      }
      for (int norm = 0; norm < 4; ++norm) {
        add({768});
      }
    }
  }

  void add(const std::vector<int64_t>& shape) {
    weights.push_back(at::randn(shape));
    gradients.push_back(at::randn(shape) * 0.01);
    averages.push_back(at::zeros_like(weights.back()));
    squares.push_back(at::zeros_like(weights.back()));
    parameters.push_back(weights.back().to(at::kBFloat16));
    elements += weights.back().numel();
  }

  Tensors weights, gradients, averages, squares, parameters;
  int64_t elements = 0;
};

struct Measured {
  std::string name;
  std::function<void()> run;
  double bytes; // read and written
  std::vector<double> seconds;

  [[nodiscard]] double median() {
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  }
};

std::vector<mh::UpdateItem> items_of(Model& model, at::ScalarType state) {
  std::vector<mh::UpdateItem> items;
  for (size_t i = 0; i < model.weights.size(); ++i) {
    mh::UpdateItem item;
    item.name = std::to_string(i);
    item.weight = model.weights[i];
    item.gradient = model.gradients[i];
    item.state = {model.averages[i].to(state), model.squares[i].to(state)};
    item.weight_decay = 0.1;
    item.parameter = model.parameters[i];
    items.push_back(std::move(item));
  }
  return items;
}

} // namespace

int main() {
  const at::NoGradGuard no_grad;
  Model model;
  auto items = items_of(model, at::kFloat);
  auto narrow = items_of(model, at::kBFloat16);
  const mh::UpdateRule rule{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
  auto rounding = rule;
  rounding.stochastic_rounding = true;
  const mh::Update update{.step = 10, .lr = 1e-4, .gradient_scale = 0.5};
  const Tensors steps(model.weights.size(), at::full({}, 10.0, at::kFloat));
  const auto divisor = at::full({}, 2.0, at::kFloat);
  const auto theirs = [&] {
    at::_fused_adamw_(
        model.weights,
        model.gradients,
        model.averages,
        model.squares,
        {},
        steps,
        1e-4,
        0.9,
        0.95,
        0.1,
        1e-8,
        /*amsgrad=*/false,
        /*maximize=*/false,
        divisor
    );
  };
  const at::Tensor from = at::randn({64 << 20});
  const at::Tensor to = at::zeros_like(from);
  const auto n = static_cast<double>(model.elements);
  std::vector<Measured> all{
      {"a copy", [&] { to.copy_(from); }, 8.0 * static_cast<double>(from.numel()), {}},
      {"ours: weights, state, bf16 parameters, gradients to zero",
       [&] { mh::update_fused(rule, items, update); },
       34 * n,
       {}},
      {"ours with bf16 state", [&] { mh::update_fused(rule, narrow, update); }, 26 * n, {}},
      {"ours with bf16 state, rounded stochastically",
       [&] { mh::update_fused(rounding, narrow, update); },
       26 * n,
       {}},
      {"_fused_adamw_: weights and state", theirs, 32 * n, {}},
      {"_fused_adamw_, copies to bf16, gradients to zero",
       [&] {
         theirs();
         for (size_t i = 0; i < model.weights.size(); ++i) {
           model.parameters[i].copy_(model.weights[i]);
           model.gradients[i].zero_();
         }
       },
       42 * n,
       {}}};
  for (int round = 0; round < 8; ++round) { // in turn; the first one warms up
    for (auto& measured : all) {
      const auto begin = std::chrono::steady_clock::now();
      measured.run();
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      if (round > 0) {
        measured.seconds.push_back(seconds.count());
      }
    }
  }
  const double copy = all.front().bytes / all.front().median();
  const double ours = all[1].median();
  std::printf(
      "AdamW over %.1f million parameters on %d threads, medians of 7\n\n",
      n / 1e6,
      at::get_num_threads()
  );
  std::printf("%-58s %8s %8s %10s %8s\n", "", "ms", "GB/s", "of a copy", "to ours");
  for (auto& measured : all) {
    const double rate = measured.bytes / measured.median();
    std::printf(
        "%-58s %8.1f %8.1f %9.0f%% %8.2f\n",
        measured.name.c_str(),
        1e3 * measured.median(),
        rate / 1e9,
        100 * rate / copy,
        measured.median() / ours
    );
  }
  return 0;
}
