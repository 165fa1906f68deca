/// Rates of copies and sums, and of the operators that are bound by them.

#include "core/base/number_text.hpp"
#include "core/bench/bench.hpp"
#include "core/kernels/registration.hpp"
#include "core/plan/cost.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <nlohmann/json.hpp>

#include <array>
#include <utility>

namespace mh {

namespace {

using at::Tensor;
using Stack = std::vector<c10::IValue>;

/// An operator of ours and the arguments it is measured with, in its schema's order.
struct OpCall {
  std::string name, what;
  Stack arguments;
};

/// The sizes at which operators are measured.
struct OpSizes {
  int64_t tokens, hidden, ffn, heads, dim;
  int64_t vocab, padded_vocab, rows; ///< rows of logits at a time
};

constexpr OpSizes kCpuSizes{1024, 768, 2048, 12, 64, 50257, 50304, 256};       // GPT-2 124M
constexpr OpSizes kGpuSizes{8192, 4096, 14336, 32, 128, 128256, 128256, 4096}; // Llama 3 8B

/// Everything but GEMMs and attention.
std::vector<OpCall> calls(at::ScalarType type, const OpSizes& n, at::Device on) {
  const auto random = [&](at::IntArrayRef sizes) {
    return at::randn(sizes, at::TensorOptions(at::kFloat).device(on)).to(type);
  };
  const auto floats = [&](at::IntArrayRef sizes) {
    return at::randn(sizes, at::TensorOptions(at::kFloat).device(on));
  };
  const auto ids = [&](int64_t below, int64_t count) {
    return at::randint(below, {count}, at::TensorOptions(at::kLong).device(on));
  };
  const auto numbers = [&](int64_t count) {
    return at::arange(count, at::TensorOptions(at::kLong).device(on));
  };
  const auto wide = [](int64_t count) { return grouped(count) + " wide"; };
  const Tensor x = random({n.tokens, 1, n.hidden});
  const Tensor weight = random({n.hidden});
  const Tensor pair = random({n.tokens, 2 * n.ffn});
  const Tensor half = random({n.tokens, n.ffn});
  const Tensor z = random({n.rows, n.padded_vocab});
  const Tensor labels = ids(n.vocab, n.rows);
  const Tensor ones = at::ones({n.rows}, at::TensorOptions(at::kFloat).device(on));
  const Tensor heads = random({n.tokens, 1, n.heads, n.dim});
  const std::string logits = grouped(n.rows) + " tokens of " + grouped(n.vocab);
  const std::string head_text = std::to_string(n.heads) + " heads of " + std::to_string(n.dim);
  const c10::IValue none;
  return {
      {"norm", "layer norm, " + wide(n.hidden), {x, none, weight, weight, 1e-5, true}},
      {"norm", "RMS norm, " + wide(n.hidden), {x, none, weight, none, 1e-5, false}},
      {"norm_backward",
       "layer norm, " + wide(n.hidden),
       {x,
        x,
        weight,
        floats({n.tokens}),
        floats({n.tokens}).abs(),
        none,
        true,
        floats({n.hidden}),
        floats({n.hidden})}},
      {"rotary",
       head_text,
       {std::vector<Tensor>{heads}, floats({2, n.tokens, 1, 1, n.dim / 2}), 1, false}},
      {"activation", "SwiGLU, " + wide(n.ffn), {pair, "silu", true}},
      {"activation_backward", "SwiGLU, " + wide(n.ffn), {half, pair, "silu", true}},
      {"activation", "GELU, " + wide(2 * n.ffn), {pair, "gelu_tanh", false}},
      {"activation_backward", "GELU, " + wide(2 * n.ffn), {pair, pair, "gelu_tanh", false}},
      {"dropout", wide(n.hidden), {x, 0.1, 7, numbers(1), numbers(n.tokens), 0}},
      {"vocab_statistics", logits, {z, labels, 0, n.vocab}},
      {"vocab_gradient_", logits, {z.clone(), labels, ones * 20, ones, 0, n.vocab}},
      {"add_row_sums_",
       wide(4 * n.hidden),
       {floats({4 * n.hidden}), random({n.tokens, 4 * n.hidden})}},
      {"embedding_add_",
       wide(n.hidden),
       {floats({n.vocab, n.hidden}), ids(n.vocab, n.tokens), x.view({n.tokens, -1})}},
  };
}

double run_time(const OpCall& call, const Device& device) {
  const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow(("megahost::" + call.name).c_str(), "");
  return shortest_time(
      [&] {
        Stack stack = call.arguments;
        op.callBoxed(stack);
      },
      &device
  );
}

} // namespace

BenchTable bench_memory(const Device& device) {
  const at::NoGradGuard no_grad;
  BenchTable table{
      .title = "arrays of float32, in GB/s read and written",
      .columns =
          {{"megabytes", "MB", 2},
           {"copy_gb_per_s", "copy"},
           {"fill_gb_per_s", "fill"},
           {"add_gb_per_s", "a += b"}},
      .rows = {}};
  const bool cpu = device.device().is_cpu();
  const auto options = at::TensorOptions(at::kFloat).device(device.device());
  for (const int64_t kibibytes :
       cpu ? std::array<int64_t, 5>{64, 512, 4096, 16384, 262144}
           : std::array<int64_t, 5>{4096, 16384, 65536, 262144, 2097152}) {
    const Tensor a = at::ones({kibibytes * 256}, options);
    Tensor b = at::ones({kibibytes * 256}, options);
    const auto bytes = static_cast<double>(a.nbytes());
    // Small arrays are gone through many times: a single pass is shorter than a call.
    const int64_t times = std::max<int64_t>(1, 16384 / kibibytes);
    const auto rate = [&](double passes, const auto& work) {
      const double seconds = shortest_time(
          [&] {
            for (int64_t i = 0; i < times; ++i) {
              work();
            }
          },
          &device
      );
      return passes * bytes * static_cast<double>(times) / seconds / 1e9;
    };
    table.rows.push_back(
        {{"megabytes", bytes / 1e6},
         {"copy_gb_per_s", rate(2, [&] { b.copy_(a); })},
         {"fill_gb_per_s", rate(1, [&] { b.fill_(1); })},
         {"add_gb_per_s", rate(3, [&] { b.add_(a); })}}
    );
  }
  return table;
}

BenchTable bench_ops(const Device& device) {
  const at::NoGradGuard no_grad;
  const at::Device on = device.device();
  const OpSizes& sizes = on.is_cpu() ? kCpuSizes : kGpuSizes;
  BenchTable table{
      .title = "operators over " + grouped(sizes.tokens) +
               " tokens; bytes are those of each tensor once",
      .columns =
          {{"type", "type"},
           {"operator", "operator"},
           {"what", "of"},
           {"milliseconds", "ms", 3},
           {"gb_per_s", "GB/s", 1},
           {"gflops_per_s", "GFLOP/s", 1}},
      .rows = {},
      .note = "`megahost bench memory` says how fast memory is, `bench gemm` and `bench attention` "
              "measure GEMMs. The benchmark `operations` compares with plain ATen."};
  for (const auto type : {at::kBFloat16, at::kFloat}) {
    for (const OpCall& call : calls(type, sizes, on)) {
      const c10::ArrayRef<const c10::IValue> arguments(
          call.arguments.data(), call.arguments.size()
      );
      const auto cost = ops::find_cost("megahost::" + call.name)(arguments);
      const double seconds = run_time(call, device);
      table.rows.push_back(
          {{"type", type == at::kFloat ? "fp32" : "bf16"},
           {"operator", call.name},
           {"what", call.what},
           {"milliseconds", 1e3 * seconds},
           {"gb_per_s", cost.bytes / seconds / 1e9},
           {"gflops_per_s", cost.flops / seconds / 1e9}}
      );
    }
  }
  return table;
}

} // namespace mh
