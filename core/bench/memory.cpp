/// Rates of copies and sums, and of the operators that are bound by them.

#include "core/bench/bench.hpp"
#include "core/kernels/cost.hpp"
#include "core/kernels/registration.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <nlohmann/json.hpp>

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

/// Everything but products and attention, at the sizes of 1,024 tokens of a small model.
std::vector<OpCall> calls(at::ScalarType type) {
  constexpr int64_t kTokens = 1024, kHidden = 768, kVocab = 50304;
  const auto random = [type](at::IntArrayRef sizes) { return at::randn(sizes).to(type); };
  const auto floats = [](at::IntArrayRef sizes) { return at::randn(sizes); };
  const Tensor x = random({kTokens, 1, kHidden});
  const Tensor weight = random({kHidden});
  const Tensor pair = random({kTokens, 4096});
  const Tensor half = random({kTokens, 2048});
  const Tensor z = random({256, kVocab});
  const Tensor labels = at::randint(50257, {256}, at::kLong);
  const Tensor heads = random({kTokens, 1, 12, 64});
  const c10::IValue none;
  return {
      {"norm", "layer norm, 768 wide", {x, none, weight, weight, 1e-5, true}},
      {"norm", "RMS norm, 768 wide", {x, none, weight, none, 1e-5, false}},
      {"norm_backward",
       "layer norm, 768 wide",
       {x,
        x,
        weight,
        floats({kTokens}),
        at::ones({kTokens}),
        none,
        true,
        floats({kHidden}),
        floats({kHidden})}},
      {"rotary",
       "12 heads of 64",
       {std::vector<Tensor>{heads}, floats({2, kTokens, 1, 1, 32}), 1, false}},
      {"activation", "SwiGLU, 2,048 wide", {pair, "silu", true}},
      {"activation_backward", "SwiGLU, 2,048 wide", {half, pair, "silu", true}},
      {"activation", "GELU, 4,096 wide", {pair, "gelu_tanh", false}},
      {"activation_backward", "GELU, 4,096 wide", {pair, pair, "gelu_tanh", false}},
      {"dropout", "768 wide", {x, 0.1, 7, at::arange(1), at::arange(kTokens), 0}},
      {"vocab_statistics", "256 tokens of 50,257", {z, labels, 0, 50257}},
      {"vocab_gradient_",
       "256 tokens of 50,257",
       {z.clone(), labels, at::ones({256}) * 20, at::ones({256}), 0, 50257}},
      {"add_row_sums_", "3,072 wide", {floats({3072}), random({kTokens, 3072})}},
      {"embedding_add_",
       "768 wide",
       {floats({50257, kHidden}), at::randint(50257, {kTokens}, at::kLong), x.view({kTokens, -1})}},
  };
}

double run_time(const OpCall& call) {
  const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow(("megahost::" + call.name).c_str(), "");
  return shortest_time([&] {
    Stack stack = call.arguments;
    op.callBoxed(stack);
  });
}

} // namespace

BenchTable bench_memory() {
  const at::NoGradGuard no_grad;
  BenchTable table{
      .title = "arrays of float32, in GB/s read and written",
      .columns =
          {{"megabytes", "MB", 2},
           {"copy_gb_per_s", "copy"},
           {"fill_gb_per_s", "fill"},
           {"add_gb_per_s", "a += b"}},
      .rows = {}};
  for (const int64_t kibibytes : {64, 512, 4096, 16384, 262144}) {
    const Tensor a = at::ones({kibibytes * 256});
    Tensor b = at::ones({kibibytes * 256});
    const auto bytes = static_cast<double>(a.nbytes());
    // Small arrays are gone through many times: a single pass is shorter than a call.
    const int64_t times = std::max<int64_t>(1, 16384 / kibibytes);
    const auto rate = [&](double passes, const auto& work) {
      const double seconds = shortest_time([&] {
        for (int64_t i = 0; i < times; ++i) {
          work();
        }
      });
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

BenchTable bench_ops() {
  const at::NoGradGuard no_grad;
  BenchTable table{
      .title = "operators over 1,024 tokens; bytes are those of each tensor once",
      .columns =
          {{"type", "type"},
           {"operator", "operator"},
           {"what", "of"},
           {"milliseconds", "ms", 3},
           {"gb_per_s", "GB/s", 1},
           {"gflops_per_s", "GFLOP/s", 1}},
      .rows = {},
      .note = "`megahost bench memory` says how fast memory is, `bench gemm` and `bench attention` "
              "measure products. The benchmark `operations` compares with plain ATen."};
  for (const auto type : {at::kBFloat16, at::kFloat}) {
    for (const OpCall& call : calls(type)) {
      const c10::ArrayRef<const c10::IValue> arguments(
          call.arguments.data(), call.arguments.size()
      );
      const auto cost = ops::find_cost("megahost::" + call.name)(arguments);
      const double seconds = run_time(call);
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
