// Attention on a GPU without one: the calls of LibTorch's FlashAttention 2 mean what the masks
// mean, and around a kernel that is written here from its documented meaning, forward and backward
// give the plain form's numbers.

#include "core/attention/attention_gpu.hpp"
#include "core/attention/flash_calls.hpp"
#include "core/kernels/ops.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

namespace flash_tests {

using namespace mh;
using at::Tensor;
using ops::FlashCall;
using ops::KernelMask;

namespace {

// The kernel. A window of at least the longest sequence's keys is none; without one on one side
// that length stands for it (set_params_fprop); the last query is at the last key (mask.h).
bool kernel_sees(
    int64_t i,
    int64_t j,
    int64_t queries,
    int64_t keys,
    int64_t longest,
    int64_t left,
    int64_t right
) {
  left = left >= longest ? -1 : left;
  right = right >= longest ? -1 : right;
  if (left < 0 && right < 0) {
    return true;
  }
  left = left < 0 ? longest : left;
  right = right < 0 ? longest : right;
  return j >= i + keys - queries - left && j <= i + keys - queries + right;
}

/// Whether query row i of one call sees key row j: rows of all samples, one after another.
bool call_sees(const FlashCall& call, int64_t batch, int64_t i, int64_t j) {
  if (call.query_ends.empty()) {
    return i / call.queries == j / call.keys && kernel_sees(
                                                    i % call.queries,
                                                    j % call.keys,
                                                    call.queries,
                                                    call.keys,
                                                    call.keys,
                                                    call.left,
                                                    call.right
                                                );
  }
  REQUIRE(call.query_ends.back() == call.queries * batch);
  REQUIRE(call.key_ends.back() == call.keys * batch);
  REQUIRE(call.query_ends.size() == call.key_ends.size());
  for (size_t s = 1; s < call.query_ends.size(); ++s) {
    const int64_t q0 = call.query_ends[s - 1], q1 = call.query_ends[s];
    const int64_t k0 = call.key_ends[s - 1], k1 = call.key_ends[s];
    REQUIRE(q0 <= q1);
    REQUIRE(k0 <= k1);
    REQUIRE(q1 - q0 <= call.longest_queries);
    REQUIRE(k1 - k0 <= call.longest_keys);
    if (i >= q0 && i < q1) {
      return j >= k0 && j < k1 &&
             kernel_sees(
                 i - q0, j - k0, q1 - q0, k1 - k0, call.longest_keys, call.left, call.right
             );
    }
  }
  return false;
}

std::vector<int64_t> positions(const std::vector<TokenRun>& runs) {
  std::vector<int64_t> all;
  for (const auto& [first, count] : runs) {
    for (int64_t i = 0; i < count; ++i) {
      all.push_back(first + i);
    }
  }
  return all;
}

int64_t document_at(const std::vector<DocumentStart>& documents, int64_t sample, int64_t token) {
  int64_t id = 0;
  for (const DocumentStart& document : documents) {
    id = document.sample == sample && document.first <= token ? document.id : id;
  }
  return id;
}

bool mask_sees(const KernelMask& mask, int64_t sample, int64_t query, int64_t key) {
  const bool one_document =
      mask.query_documents.empty() || document_at(mask.query_documents, sample, query) ==
                                          document_at(mask.key_documents, sample, key);
  return one_document && (!mask.causal || key <= query) &&
         (mask.window == 0 || std::abs(query - key) < mask.window);
}

/// Compares every pair; whether there were calls.
bool calls_mean_the_mask(const KernelMask& mask, int64_t batch) {
  const auto own = positions(mask.query_runs), others = positions(mask.key_runs);
  const auto queries = static_cast<int64_t>(own.size()), keys = static_cast<int64_t>(others.size());
  const auto calls = ops::flash_calls(mask, queries, keys, batch);
  if (!calls) {
    return false;
  }
  int64_t wrong = 0;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t i = 0; i < queries; ++i) {
      int64_t in_calls = 0;
      for (const FlashCall& call : *calls) {
        in_calls += i >= call.first_query && i < call.first_query + call.queries ? 1 : 0;
      }
      wrong += in_calls > 1 ? 1 : 0;
      bool any = false, blind = false;
      for (int64_t j = 0; j < keys; ++j) {
        bool seen = false;
        for (const FlashCall& call : *calls) {
          const int64_t row = i - call.first_query, column = j - call.first_key;
          if (row >= 0 && row < call.queries) {
            blind = blind || call.blind;
            seen = column >= 0 && column < call.keys &&
                   call_sees(call, batch, b * call.queries + row, b * call.keys + column);
          }
        }
        any = any || seen;
        const bool wanted =
            mask_sees(mask, b, own[static_cast<size_t>(i)], others[static_cast<size_t>(j)]);
        wrong += seen != wanted ? 1 : 0;
      }
      wrong += in_calls == 1 && !any && !blind ? 1 : 0;
    }
  }
  CHECK(wrong == 0);
  return true;
}

std::vector<DocumentStart> documents_at(const std::vector<int64_t>& firsts, int64_t sample) {
  std::vector<DocumentStart> all;
  for (const int64_t first : firsts) {
    all.push_back({sample, first, static_cast<int64_t>(all.size()) + 3});
  }
  return all;
}

std::vector<DocumentStart>
joined(std::vector<DocumentStart> a, const std::vector<DocumentStart>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// --- the kernel as tensors, in float64 on the CPU

struct Sequence {
  Tensor hidden; // [queries, keys]
  int64_t q0, q1, k0, k1;
};

std::vector<Sequence> sequences(
    const std::optional<Tensor>& query_ends,
    const std::optional<Tensor>& key_ends,
    int64_t batch,
    int64_t queries,
    int64_t keys,
    int64_t longest,
    int64_t left,
    int64_t right
) {
  std::vector<Sequence> all;
  const bool ends = query_ends && query_ends->defined();
  const int64_t count = ends ? query_ends->numel() - 1 : batch;
  for (int64_t s = 0; s < count; ++s) {
    Sequence one{
        {},
        ends ? (*query_ends)[s].item<int64_t>() : s * queries,
        ends ? (*query_ends)[s + 1].item<int64_t>() : (s + 1) * queries,
        ends ? (*key_ends)[s].item<int64_t>() : s * keys,
        ends ? (*key_ends)[s + 1].item<int64_t>() : (s + 1) * keys};
    one.hidden = at::zeros({one.q1 - one.q0, one.k1 - one.k0}, at::kBool);
    for (int64_t i = 0; i < one.q1 - one.q0; ++i) {
      for (int64_t j = 0; j < one.k1 - one.k0; ++j) {
        if (!kernel_sees(i, j, one.q1 - one.q0, one.k1 - one.k0, longest, left, right)) {
          one.hidden[i][j] = true;
        }
      }
    }
    all.push_back(one);
  }
  return all;
}

/// [heads, tokens, dim] of one sequence, each key head for its queries.
Tensor of_sequence(const Tensor& flat, int64_t begin, int64_t end, int64_t heads) {
  const Tensor x = flat.slice(0, begin, end).transpose(0, 1);
  return x.repeat_interleave(heads / x.size(0), 0);
}

Tensor flat(const Tensor& x) {
  return x.dim() == 4 ? x.reshape({x.size(0) * x.size(1), x.size(2), x.size(3)}) : x;
}

Tensor scores_of(const Tensor& q, const Tensor& k, double scale, const Sequence& one) {
  const int64_t heads = q.size(1);
  return (at::matmul(
              of_sequence(q, one.q0, one.q1, heads),
              of_sequence(k, one.k0, one.k1, heads).transpose(1, 2)
          ) *
          scale)
      .masked_fill(one.hidden, -INFINITY);
}

using OptionalInt = std::optional<c10::SymInt>;

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> forward_here(const Tensor& q4, const Tensor& k4, const Tensor& v4, const std::optional<Tensor>& query_ends, const std::optional<Tensor>& key_ends, c10::SymInt, c10::SymInt longest, double, bool causal, bool, std::optional<double> scale, OptionalInt left, OptionalInt right, const std::optional<Tensor>&, const std::optional<Tensor>&) {
  CHECK(q4.size(-1) % 8 == 0);
  CHECK(q4.stride(-1) == 1);
  CHECK(causal == (left->expect_int() < 0 && right->expect_int() == 0));
  const Tensor q = flat(q4), k = flat(k4), v = flat(v4);
  Tensor out = at::zeros_like(q), lse = at::full({q.size(1), q.size(0)}, INFINITY, q.options());
  const bool varlen = query_ends.has_value();
  const int64_t batch = varlen ? 1 : q4.size(0);
  const int64_t queries = q.size(0) / batch, keys = k.size(0) / batch;
  for (const auto& one : sequences(
           query_ends,
           key_ends,
           batch,
           queries,
           keys,
           longest.expect_int(),
           left->expect_int(),
           right->expect_int()
       )) {
    if (one.k1 == one.k0 || one.q1 == one.q0) {
      continue;
    }
    const Tensor s = scores_of(q, k, *scale, one);
    out.slice(0, one.q0, one.q1)
        .copy_(at::matmul(s.softmax(-1), of_sequence(v, one.k0, one.k1, q.size(1))).transpose(0, 1)
        );
    lse.slice(1, one.q0, one.q1).copy_(s.logsumexp(-1));
  }
  if (!varlen) {
    lse = lse.view({q.size(1), batch, queries}).transpose(0, 1).contiguous();
  }
  return {out.view_as(q4), lse, Tensor(), Tensor(), Tensor()};
}

std::tuple<Tensor, Tensor, Tensor> backward_here(
    const Tensor& dout4,
    const Tensor& q4,
    const Tensor& k4,
    const Tensor& v4,
    const Tensor& out4,
    const Tensor& lse,
    const Tensor& query_ends,
    const Tensor& key_ends,
    c10::SymInt,
    c10::SymInt longest,
    double,
    bool,
    const Tensor&,
    const Tensor&,
    std::optional<double> scale,
    OptionalInt left,
    OptionalInt right
) {
  CHECK(lse.is_contiguous());
  const Tensor q = flat(q4), k = flat(k4), v = flat(v4), dout = flat(dout4), out = flat(out4);
  const int64_t heads = q.size(1), groups = heads / k.size(1);
  const bool varlen = query_ends.defined();
  const int64_t batch = varlen ? 1 : q4.size(0);
  const Tensor sums = varlen ? lse : lse.transpose(0, 1).reshape({heads, -1});
  Tensor dq = at::zeros_like(q), dk = at::zeros_like(k), dv = at::zeros_like(v);
  const auto by_keys = [&](const Tensor& x) { // the heads of a group together
    return x.view({k.size(1), groups, x.size(1), x.size(2)}).sum(1).transpose(0, 1);
  };
  for (const auto& one : sequences(
           query_ends,
           key_ends,
           batch,
           q.size(0) / batch,
           k.size(0) / batch,
           longest.expect_int(),
           left->expect_int(),
           right->expect_int()
       )) {
    if (one.k1 == one.k0 || one.q1 == one.q0) {
      continue;
    }
    const Tensor shares =
        (scores_of(q, k, *scale, one) - sums.slice(1, one.q0, one.q1).unsqueeze(-1)).exp();
    const Tensor d = of_sequence(dout, one.q0, one.q1, heads);
    const Tensor delta = (d * of_sequence(out, one.q0, one.q1, heads)).sum(-1, true);
    const Tensor dp = at::matmul(d, of_sequence(v, one.k0, one.k1, heads).transpose(1, 2));
    const Tensor ds = shares * (dp - delta) * *scale;
    dq.slice(0, one.q0, one.q1)
        .copy_(at::matmul(ds, of_sequence(k, one.k0, one.k1, heads)).transpose(0, 1));
    dk.slice(0, one.k0, one.k1)
        .copy_(by_keys(at::matmul(ds.transpose(1, 2), of_sequence(q, one.q0, one.q1, heads))));
    dv.slice(0, one.k0, one.k1).copy_(by_keys(at::matmul(shares.transpose(1, 2), d)));
  }
  return {dq.view_as(q4), dk.view_as(k4), dv.view_as(v4)};
}

Tensor segments_of(
    const std::vector<DocumentStart>& documents, const std::vector<TokenRun>& runs, int64_t batch
) {
  const auto at_rows = positions(runs);
  Tensor out = at::zeros({static_cast<int64_t>(at_rows.size()), batch}, at::kLong);
  for (size_t i = 0; i < at_rows.size(); ++i) {
    for (int64_t b = 0; b < batch; ++b) {
      out[static_cast<int64_t>(i)][b] = document_at(documents, b, at_rows[i]);
    }
  }
  return out;
}

/// The kernel's numbers are those of the plain form, which `attention` is in float64.
void compare(KernelMask mask, int64_t batch, int64_t dim) {
  const auto own = positions(mask.query_runs), others = positions(mask.key_runs);
  const auto queries = static_cast<int64_t>(own.size()), keys = static_cast<int64_t>(others.size());
  mask.query_index = at::tensor(own, at::kLong);
  mask.key_index = at::tensor(others, at::kLong);
  if (!mask.query_documents.empty()) {
    mask.query_segments = segments_of(mask.query_documents, mask.query_runs, batch);
    mask.key_segments = segments_of(mask.key_documents, mask.key_runs, batch);
  }
  const auto calls = ops::flash_calls(mask, queries, keys, batch);
  REQUIRE(calls);
  const auto random = [&](int64_t rows, int64_t heads) {
    return at::randn({rows, batch, heads, dim}, at::kDouble);
  };
  const Tensor q = random(queries, 4), k = random(keys, 2), v = random(keys, 2);
  const Tensor dout = random(queries, 4);
  const auto [out, lse] = ops::attention(q, k, v, 0.3, mask);
  const auto [found, found_lse] = ops::attention_gpu(q, k, v, 0.3, *calls, mask, {});
  CHECK(found.is_contiguous());
  CHECK(at::allclose(out, found, 0, 1e-12));
  CHECK(at::allclose(lse, found_lse.to(at::kDouble), 1e-6, 1e-6));
  const auto [dq, dk, dv, none] = ops::attention_backward(dout, q, k, v, out, lse, 0.3, mask);
  const auto [dq_found, dk_found, dv_found] =
      ops::attention_gpu_backward(dout, q, k, v, out, lse, 0.3, *calls, mask, {});
  CHECK(at::allclose(dq, dq_found, 0, 1e-12));
  CHECK(at::allclose(dk, dk_found, 0, 1e-12));
  CHECK(at::allclose(dv, dv_found, 0, 1e-12));
}

} // namespace

TEST_CASE("calls mean the mask: all windows, lengths and offsets of one run each") {
  int64_t found = 0, all = 0;
  for (const bool causal : {true, false}) {
    for (int64_t queries = 1; queries <= 6; ++queries) {
      for (int64_t keys = 1; keys <= 6; ++keys) {
        for (int64_t offset = -7; offset <= 7; ++offset) {
          for (int64_t window = 0; window <= 9; ++window) {
            const KernelMask mask{
                .causal = causal,
                .window = window,
                .query_runs = {{10 + offset, queries}},
                .key_runs = {{10, keys}}};
            ++all;
            found += calls_mean_the_mask(mask, 2) ? 1 : 0;
          }
        }
      }
    }
  }
  CHECK(found > all * 9 / 10); // the others make their scores
}

TEST_CASE("calls mean the mask: all visits of rings of up to four ranks, with every window") {
  for (const int64_t ranks : {1, 2, 3, 4}) {
    const int64_t length = 3, size = 2 * ranks * length;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      for (int64_t piece = 0; piece < 2 * ranks; ++piece) {
        for (int64_t window = 0; window <= size; ++window) {
          CHECK(calls_mean_the_mask(
              {.window = window,
               .query_runs = sharded_runs(Sharding::zigzag, size, ranks, rank),
               .key_runs = {{piece * length, length}}},
              2
          ));
        }
      }
    }
  }
}

TEST_CASE("calls mean the mask: all cuts of two samples into documents") {
  constexpr int64_t kLength = 6;
  for (int64_t cuts = 0; cuts < 1 << (2 * (kLength - 1)); ++cuts) {
    std::vector<std::vector<int64_t>> firsts{{0}, {0}};
    for (int64_t bit = 0; bit < 2 * (kLength - 1); ++bit) {
      if ((cuts >> bit & 1) != 0) {
        firsts[static_cast<size_t>(bit / (kLength - 1))].push_back(bit % (kLength - 1) + 1);
      }
    }
    const auto documents = joined(documents_at(firsts[0], 0), documents_at(firsts[1], 1));
    for (const int64_t window : {0, 1, 2, 4}) {
      KernelMask mask{
          .causal = cuts % 3 != 0,
          .window = window,
          .query_runs = {{0, kLength}},
          .key_runs = {{0, kLength}},
          .query_documents = documents,
          .key_documents = documents};
      CHECK(calls_mean_the_mask(mask, 2));
      mask.causal = true; // as ranks of a ring see them
      mask.query_runs = {{0, 2}, {4, 2}};
      for (const int64_t first : {0, 2, 4}) {
        mask.key_runs = {{first, 2}};
        CHECK((calls_mean_the_mask(mask, 2) || window > 0));
      }
    }
  }
}

TEST_CASE("calls mean the mask: another sequence, whose documents may be none or in another order"
) {
  KernelMask mask{
      .causal = false,
      .query_runs = {{0, 8}},
      .key_runs = {{0, 5}},
      .query_documents = {{0, 0, 1}, {0, 3, 2}, {0, 6, 7}},
      .key_documents = {{0, 0, 1}, {0, 1, 5}, {0, 2, 2}}};
  CHECK(calls_mean_the_mask(mask, 1));
  mask.key_documents = {{0, 0, 2}, {0, 2, 1}};
  CHECK(!calls_mean_the_mask(mask, 1));
  mask.key_documents = {{0, 0, 9}};
  CHECK(calls_mean_the_mask(mask, 1)); // no query sees a key
}

TEST_CASE("what the kernel cannot do is refused, what it can is not") {
  using ops::gpu_calls;
  const auto q = [](at::ScalarType type, int64_t dim) { return at::zeros({4, 1, 2, dim}, type); };
  const Tensor usual = q(at::kBFloat16, 64);
  const KernelMask causal;
  CHECK(gpu_calls(usual, usual, causal, {}));
  CHECK(gpu_calls(q(at::kHalf, 256), q(at::kHalf, 256), causal, {.p = 0.1}));
  CHECK(!gpu_calls(q(at::kFloat, 64), q(at::kFloat, 64), causal, {}));
  CHECK(!gpu_calls(q(at::kBFloat16, 264), q(at::kBFloat16, 264), causal, {}));
  CHECK(!gpu_calls(usual, usual, causal, {.p = 0.1, .first_sample = -1}));
  CHECK(!gpu_calls(usual, usual, {.bias = at::zeros({2, 7})}, {}));
  KernelMask packed;
  packed.query_segments = packed.key_segments = at::zeros({4, 1}, at::kLong);
  CHECK(!gpu_calls(usual, usual, packed, {})); // host memory does not say which
  packed.query_documents = packed.key_documents = {{0, 0, 0}};
  CHECK(gpu_calls(usual, usual, packed, {}));
  packed.query_index = packed.key_index = at::arange(4);
  CHECK(!gpu_calls(usual, usual, packed, {}));
  const Tensor planned = usual.to(at::kMeta);
  const KernelMask unread{
      .query_segments = at::zeros({4, 1}, at::kLong), .key_segments = at::zeros({4, 1}, at::kLong)};
  CHECK(gpu_calls(planned, planned, unread, {}));
}

TEST_CASE("the calls' results are put together as the plain form's") {
  ops::ensure_registered();
  torch::Library kernel(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  kernel.impl("_flash_attention_forward", forward_here);
  kernel.impl("_flash_attention_backward", backward_here);
  const at::NoGradGuard no_gradients;
  const auto documents = joined(documents_at({0, 3, 4, 9}, 0), documents_at({0, 7}, 1));
  for (const int64_t dim : {8, 6}) {
    for (const int64_t window : {0, 3}) {
      const KernelMask whole{.window = window, .query_runs = {{0, 12}}, .key_runs = {{0, 12}}};
      compare(whole, 2, dim);
      auto packed = whole;
      packed.query_documents = packed.key_documents = documents;
      compare(packed, 2, dim);
      compare(packed, 1, dim);
      for (const int64_t first : {0, 3, 6, 9}) { // rank 0 of 2 of a ring
        auto visit = whole;
        visit.query_runs = {{0, 3}, {9, 3}};
        visit.key_runs = {{first, 3}};
        compare(visit, 2, dim);
      }
    }
    const KernelMask continued{.query_runs = {{9, 3}}, .key_runs = {{0, 12}}};
    compare(continued, 2, dim);
    KernelMask other{
        .causal = false,
        .query_runs = {{0, 8}},
        .key_runs = {{0, 5}},
        .query_documents = {{0, 0, 1}, {0, 3, 2}, {0, 6, 7}},
        .key_documents = {{0, 0, 1}, {0, 1, 5}, {0, 2, 2}}};
    compare(other, 1, dim);
  }
}

} // namespace flash_tests
