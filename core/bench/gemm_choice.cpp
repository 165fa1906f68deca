#include "core/bench/gemm_choice.hpp"

#include "core/base/folders.hpp"
#include "core/bench/bench.hpp"
#include "core/bench/machine.hpp"
#include "core/kernels/gemm.hpp"
#include "core/kernels/ops.hpp"
#include "core/storage/file_system.hpp"
#include "megahost/error.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/version.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>

namespace mh {

namespace {

using GemmJson = nlohmann::ordered_json;

constexpr double kClearlyFaster = 1.03;
constexpr uint64_t kLargestFile = uint64_t{1} << 20;

/// The machine that a choice holds for.
std::string gemm_machine() {
  return processor_text() + ", LibTorch " + TORCH_VERSION;
}

GemmJson read_choices(const std::string& file) {
  if (file_system().kind(file) == FileSystem::Kind::none) {
    return GemmJson::object();
  }
  GemmJson choices = GemmJson::parse(read_file(file, kLargestFile), nullptr, false);
  if (!choices.is_object()) {
    throw Error(
        file + " holds no choices of a GEMM", "delete it: the next run measures and writes it again"
    );
  }
  return choices;
}

/// The rate of every kind in GFLOP/s, whole numbers.
GemmJson rates_json(const std::array<double, ops::kProductKinds.size()>& rates) {
  GemmJson json;
  for (const auto kind : ops::kProductKinds) {
    json[std::string(ops::to_string(kind))] = std::lround(rates[static_cast<size_t>(kind)]);
  }
  return json;
}

} // namespace

GemmRates time_gemm() {
  ops::ensure_registered();
  const at::NoGradGuard no_grad;
  constexpr int64_t kSide = 1024;
  const at::Tensor x = at::ones({kSide, kSide}); // random ones would move the generator of a run
  const at::Tensor w = at::ones({kSide, kSide});
  at::Tensor c = at::zeros({kSide, kSide});
  const double giga = 2e-9 * std::pow(static_cast<double>(kSide), 3);
  const ops::GemmChoice before = ops::gemm_choice();
  GemmRates rates;
  for (const auto kind : ops::kProductKinds) {
    const auto rate = [&](bool libtorch) {
      ops::GemmChoice choice;
      choice[kind] = libtorch;
      ops::use_gemm(choice);
      return giga / shortest_time([&] {
               switch (kind) {
               case ops::ProductKind::output:
                 return ops::gemm_(c, x, w.t(), /*add=*/false);
               case ops::ProductKind::input_gradient:
                 return ops::gemm_(c, x, w, /*add=*/false);
               case ops::ProductKind::weight_gradient:
                 return ops::gemm_(c, x.t(), w, /*add=*/true);
               }
             });
    };
    rates.own[static_cast<size_t>(kind)] = rate(false);
    rates.libtorch[static_cast<size_t>(kind)] = rate(true);
  }
  ops::use_gemm(before);
  return rates;
}

ops::GemmChoice faster_gemm(const GemmRates& rates) {
  ops::GemmChoice choice;
  for (const auto kind : ops::kProductKinds) {
    const auto at = static_cast<size_t>(kind);
    choice[kind] = rates.libtorch[at] > kClearlyFaster * rates.own[at];
  }
  return choice;
}

std::string chosen_gemm(UnknownMachine unknown) {
  const char* variable = std::getenv("MEGAHOST_GEMM");
  const std::string wanted = variable == nullptr ? "auto" : variable;
  if (wanted == "own") {
    return "";
  }
  if (wanted == "libtorch") {
    return to_string(ops::GemmChoice{{true, true, true}});
  }
  if (wanted != "auto") {
    throw Error(
        "MEGAHOST_GEMM is `" + wanted + "`",
        "it is auto (the faster on this machine), own or libtorch"
    );
  }
  const auto folder = user_folder();
  if (!folder) {
    return "";
  }
  const std::string file = *folder / "gemm.json";
  const std::string machine = gemm_machine();
  GemmJson choices = read_choices(file);
  if (!choices.contains(machine)) {
    if (unknown == UnknownMachine::own) {
      return "";
    }
    try {
      make_directories(folder->string());
      const GemmRates rates = time_gemm();
      choices = read_choices(file); // another run may have been faster
      if (!choices.contains(machine)) {
        choices[machine] = {
            {"libtorch", to_string(faster_gemm(rates))},
            {"own_gflops_per_s", rates_json(rates.own)},
            {"libtorch_gflops_per_s", rates_json(rates.libtorch)}};
        replace_file(file, choices.dump(2) + "\n");
      }
    } catch (const Error&) {
      return ""; // a choice that is not kept may be another one next time, with other bits
    }
  }
  const GemmJson& found = choices[machine];
  if (!found.is_object() || !found.contains("libtorch") || !found["libtorch"].is_string()) {
    throw Error(
        file + " holds no choice for " + machine,
        "delete it: the next run measures and writes it again"
    );
  }
  return to_string(ops::gemm_choice_of(found["libtorch"].get<std::string>()));
}

} // namespace mh
