/// Attention's kernels next to float64, for each kind of mask that they are chosen by.

#include "core/bench/bench.hpp"
#include "megahost/nn/attention_kernel.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/autograd.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace mh {

namespace {

using at::Tensor;
using Json = nlohmann::ordered_json;
using ops::KernelMask;

constexpr int64_t kTokens = 300, kSamples = 2; // no multiple of a kernel's tile
constexpr double kDropped = 0.2;

struct MaskCase {
  std::string name;
  int64_t queries = kTokens, keys = kTokens, dim = 64, kv_heads = 4;
  KernelMask mask{};
};

/// Indices and segments of what the host knows of a mask.
KernelMask with_tensors(KernelMask mask) {
  const auto index = [](const std::vector<TokenRun>& runs) {
    std::vector<Tensor> parts;
    for (const auto& [first, count] : runs) {
      parts.push_back(at::arange(first, first + count));
    }
    return at::cat(parts);
  };
  const auto segments = [](const std::vector<DocumentStart>& documents, const Tensor& tokens) {
    Tensor ids = at::ones({tokens.size(0), kSamples}, at::kLong);
    for (const auto& [sample, first, id] : documents) {
      ids.select(1, sample).masked_fill_(tokens.ge(first), id);
    }
    return ids;
  };
  if (!mask.query_runs.empty()) {
    mask.query_index = index(mask.query_runs);
    mask.key_index = index(mask.key_runs);
  }
  if (!mask.query_documents.empty()) {
    mask.query_segments = segments(mask.query_documents, *mask.query_index);
    mask.key_segments = segments(mask.key_documents, *mask.key_index);
  }
  return mask;
}

KernelMask on(KernelMask mask, at::Device device) {
  for (auto* x : {&mask.query_index, &mask.key_index, &mask.query_segments, &mask.key_segments}) {
    if (*x) {
      *x = (*x)->to(device);
    }
  }
  return mask;
}

std::vector<MaskCase> cases() {
  const std::vector<TokenRun> all{{0, kTokens}};
  const std::vector<DocumentStart> packed{
      {0, 0, 1}, {0, 1, 2}, {0, 130, 3}, {1, 0, 1}, {1, 257, 2}};
  const KernelMask documents{
      .query_runs = all, .key_runs = all, .query_documents = packed, .key_documents = packed};
  KernelMask both = documents;
  both.window = 40;
  KernelMask ring{.query_runs = {{0, 150}, {450, 150}}, .key_runs = {{0, 150}}};
  return {
      {.name = "causal"},
      {.name = "causal, grouped", .dim = 128, .kv_heads = 1},
      {.name = "causal, heads of 60", .dim = 60},
      {.name = "causal, heads of 256", .dim = 256},
      {.name = "full", .mask = {.causal = false}},
      {.name = "window", .mask = {.window = 40}},
      {.name = "documents", .mask = documents},
      {.name = "documents and window", .kv_heads = 2, .mask = both},
      {.name = "behind a cache", .queries = 70},
      {.name = "behind a cache, window", .queries = 70, .mask = {.window = 40}},
      {.name = "a visit of a ring", .keys = 150, .mask = ring}};
}

/// The largest difference, as a part of the largest number.
double error(const Tensor& found, const Tensor& right) {
  const Tensor x = found.to(at::kCPU, at::kDouble);
  return ((x - right).abs().max() / right.abs().max().clamp_min(1e-30)).item<double>();
}

struct Operands {
  Tensor q, k, v, dout;

  Operands(const MaskCase& c, at::ScalarType type) {
    const auto random = [&](int64_t rows, int64_t heads) {
      return at::randn({rows, kSamples, heads, c.dim}).to(type);
    };
    q = random(c.queries, 4), k = random(c.keys, c.kv_heads), v = random(c.keys, c.kv_heads);
    dout = random(c.queries, 4);
  }

  [[nodiscard]] Operands to(at::Device device, at::ScalarType type) const {
    Operands other = *this;
    for (Tensor* x : {&other.q, &other.k, &other.v, &other.dout}) {
      *x = x->to(device, type);
    }
    return other;
  }
};

/// Errors of out, lse and the gradients.
Json errors_of(const MaskCase& c, at::ScalarType type, at::Device device) {
  const Operands given(c, type);
  const Operands exact = given.to(at::kCPU, at::kDouble), own = given.to(device, type);
  const double scale = 1 / std::sqrt(static_cast<double>(c.dim));
  const auto mask = with_tensors(c.mask);
  const auto [out, lse] = ops::attention(exact.q, exact.k, exact.v, scale, mask);
  const auto right =
      ops::attention_backward(exact.dout, exact.q, exact.k, exact.v, out, lse, scale, mask);
  const auto there = on(mask, device);
  const auto [y, sums] = ops::attention(own.q, own.k, own.v, scale, there);
  const auto found = ops::attention_backward(own.dout, own.q, own.k, own.v, y, sums, scale, there);
  const double backward = std::max(
      {error(std::get<0>(found), std::get<0>(right)),
       error(std::get<1>(found), std::get<1>(right)),
       error(std::get<2>(found), std::get<2>(right))}
  );
  const Tensor seen = lse.isfinite();
  const bool same_rows = at::equal(seen, sums.cpu().isfinite());
  const double of_sums = error(sums.cpu().masked_select(seen), lse.masked_select(seen));
  return {
      {"forward_error", same_rows ? std::max(error(y, out), of_sums) : INFINITY},
      {"backward_error", backward}};
}

/// The kernel that LibTorch chooses, which models call where nothing but causality is asked for.
Json errors_of_chosen(at::ScalarType type, at::Device device) {
  const MaskCase c{.name = "", .kv_heads = 2};
  const Operands given(c, type);
  const double scale = 0.125;
  const Operands exact = given.to(at::kCPU, at::kDouble), own = given.to(device, type);
  const auto [out, lse] = ops::attention(exact.q, exact.k, exact.v, scale, {});
  const auto right =
      ops::attention_backward(exact.dout, exact.q, exact.k, exact.v, out, lse, scale, {});
  const at::AutoGradMode gradients(true);
  const auto leaf = [](const Tensor& x) {
    return x.permute({1, 2, 0, 3}).detach().requires_grad_();
  };
  const Tensor q = leaf(own.q), k = leaf(own.k), v = leaf(own.v);
  const Tensor y = at::scaled_dot_product_attention(q, k, v, {}, 0.0, true, scale, true);
  const auto found = torch::autograd::grad({y}, {q, k, v}, {own.dout.permute({1, 2, 0, 3})});
  const auto back = [](const Tensor& x) { return x.detach().permute({2, 0, 1, 3}); };
  return {
      {"forward_error", error(back(y), out)},
      {"backward_error",
       std::max(
           {error(back(found[0]), std::get<0>(right)),
            error(back(found[1]), std::get<1>(right)),
            error(back(found[2]), std::get<2>(right))}
       )}};
}

/// With values of 1 an output is what is left of a row's probabilities, 1 on the average; and with
/// output gradients of 1, gradients of values sum to the outputs' sum if masks are the same ones.
Json errors_of_dropout(at::ScalarType type, at::Device device) {
  const MaskCase c{.name = "", .mask = {.causal = false}};
  Operands own = Operands(c, type).to(device, type);
  own.v.fill_(1);
  own.dout.fill_(1);
  const ops::KernelDropout dropout{
      .p = kDropped, .key = 12345, .samples = at::arange(kSamples).to(device), .first_sample = 0};
  const auto run = [&] { return ops::attention(own.q, own.k, own.v, 0.125, c.mask, dropout); };
  const auto [out, lse] = run();
  const bool again = at::equal(out, std::get<0>(run()));
  const bool drops = out.to(at::kFloat).std().item<double>() > 1e-3;
  const auto found =
      ops::attention_backward(own.dout, own.q, own.k, own.v, out, lse, 0.125, c.mask, dropout);
  const double sum = out.to(at::kDouble).sum().item<double>();
  const double gradient = std::get<2>(found).to(at::kDouble).sum().item<double>();
  const double mean = sum / static_cast<double>(out.numel());
  return {
      {"forward_error", again && drops ? std::abs(mean - 1) : INFINITY},
      {"backward_error", std::abs(gradient / sum - 1)}};
}

} // namespace

BenchTable bench_masks(const Device& device) {
  const at::NoGradGuard no_grad;
  BenchTable table{
      .title = "attention under each kind of mask next to float64: the largest difference as a "
               "part of the largest number",
      .columns =
          {{"type", "type"},
           {"mask", "mask"},
           {"forward_error", "forward", 5},
           {"backward_error", "backward", 5},
           {"allowed", "allowed", 5}},
      .rows = {}};
  const at::Device on = device.device();
  for (const auto& [type, name, allowed] :
       {std::tuple{at::kBFloat16, "bf16", 8 * 0x1p-8},
        std::tuple{at::kHalf, "fp16", 8 * 0x1p-11}}) {
    const auto add = [&, type = name, most = allowed](const std::string& mask, const Json& errors) {
      Json row{{"type", type}, {"mask", mask}};
      row.update(errors);
      row["allowed"] = most;
      table.rows.push_back(row);
    };
    for (const MaskCase& c : cases()) {
      add(c.name, errors_of(c, type, on));
    }
    add("causal, as LibTorch chooses", errors_of_chosen(type, on));
    add("dropout", errors_of_dropout(type, on));
  }
  return table;
}

} // namespace mh
