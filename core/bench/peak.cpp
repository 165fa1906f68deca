/// The peak of this CPU, which no data sheet tells: the best that any start has measured.

#include "core/base/folders.hpp"
#include "core/bench/bench.hpp"
#include "core/bench/machine.hpp"
#include "core/kernels/gemm.hpp"
#include "core/kernels/ops.hpp"
#include "core/recipe/commands.hpp"
#include "core/storage/file_system.hpp"
#include "megahost/error.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

namespace mh {

namespace {

/// FLOP/s of the best GEMM within so many seconds, LibTorch's or ours.
double short_product_rate(at::ScalarType type, double longest) {
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kSide = 1024;
  ops::ensure_registered();
  const at::NoGradGuard no_grad;
  const at::Tensor a = at::ones({kSide, kSide}, type);
  at::Tensor c = at::ones({kSide, kSide}, type);
  const auto seconds_since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  double shortest = 0;
  const auto time = [&](const auto& product) {
    const auto begin = Clock::now();
    product();
    const double seconds = seconds_since(begin);
    shortest = shortest == 0 ? seconds : std::min(shortest, seconds);
  };
  for (const auto begin = Clock::now(); shortest == 0 || seconds_since(begin) < longest;) {
    if (libtorch_has_gemm(a)) {
      time([&] { at::mm_out(c, a, a); });
    }
    time([&] { c = ops::product(a, a); });
  }
  return 2.0 * static_cast<double>(kSide * kSide * kSide) / shortest;
}

/// The peaks that are known, by processor and type; none where the file is no table.
Table known_peaks(const std::filesystem::path& file) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) {
    return {};
  }
  try {
    return read_toml(read_source(file, file.string())).as_table();
  } catch (const std::exception&) { // it was edited by hand: it is written anew
    return {};
  }
}

std::filesystem::path peaks_file() {
  const auto folder = user_folder();
  return folder ? *folder / "peaks.toml" : std::filesystem::path();
}

std::string key_of(bool bf16, int64_t ranks) {
  return processor_text() + ", " + std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks") +
         (bf16 ? ", bf16" : ", fp32");
}

/// FLOP/s; 0 if none is known.
double peak_in(const Table& peaks, const std::string& key) {
  const Value* known = peaks.find(key);
  return known != nullptr && known->is_number() && known->as_number() > 0 ? 1e9 * known->as_number()
                                                                          : 0;
}

} // namespace

double measured_peak(at::ScalarType type, int64_t ranks) {
  const bool bf16 = type == at::kBFloat16;
  const auto calibrated = ranks == 1 ? calibrated_cpu() : std::nullopt;
  const double rate = !calibrated ? 0
                      : bf16      ? calibrated->hardware.bf16_tflops
                                  : calibrated->hardware.fp32_tflops;
  if (rate > 0) {
    return 1e12 * rate;
  }
  const auto file = peaks_file();
  const std::string key = key_of(bf16, ranks);
  Table peaks = known_peaks(file);
  const double before = peak_in(peaks, key);
  // A first start may meet a busy machine, so later ones look again, shortly.
  const double measured =
      short_product_rate(bf16 ? at::kBFloat16 : at::kFloat, before > 0 ? 0.05 : 0.3);
  if (measured < 1.01 * before) {
    return before;
  }
  peaks.set(key, measured / 1e9);
  if (!file.empty()) {
    try {
      std::filesystem::create_directories(file.parent_path());
      replace_file(
          file.string(),
          "# GFLOP/s of GEMMs on this machine, the best that a run's start has measured.\n" +
              toml_text(peaks)
      );
    } catch (const std::exception&) { // the next start measures again
    }
  }
  return measured;
}

} // namespace mh
