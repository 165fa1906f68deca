#include "core/kernels/ops.hpp"
#include "core/kernels/registration.hpp"
#include "core/kernels/row_kernels.hpp"
#include "megahost/error.hpp"
#include "megahost/parallel.hpp"
#include "megahost/random.hpp"

#include <ATen/Dispatch.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>

namespace mh::ops {

namespace {

void embedding_add_cpu(at::Tensor table, const at::Tensor& ids, const at::Tensor& rows) {
  MH_ASSERT(
      table.is_contiguous() && ids.is_contiguous(), "embedding_add_ needs contiguous tensors"
  );
  const at::Tensor source = rows.contiguous();
  const int64_t width = table.size(1);
  const int64_t count = ids.numel();
  const auto* id = ids.const_data_ptr<int64_t>();
  AT_DISPATCH_FLOATING_TYPES(table.scalar_type(), "embedding_add_", [&] {
    using table_t = scalar_t;
    auto* out = table.mutable_data_ptr<table_t>();
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, source.scalar_type(), "rows", [&] {
      const auto* in = source.const_data_ptr<scalar_t>();
      // Threads own columns, so that each sum is made in one order.
      parallel_for(0, width, 64, [&](int64_t begin, int64_t end) {
        for (int64_t i = 0; i < count; ++i) {
          if (id[i] < 0) {
            continue;
          }
          table_t* to = out + id[i] * width;
          const scalar_t* from = in + i * width;
          for (int64_t c = begin; c < end; ++c) {
            to[c] += static_cast<table_t>(from[c]);
          }
        }
      });
    });
  });
}

void embedding_add_composite(at::Tensor table, const at::Tensor& ids, const at::Tensor& rows) {
  const at::Tensor kept = ids.ge(0);
  table.index_add_(0, ids.clamp_min(0), rows.to(table.scalar_type()) * kept.unsqueeze(1));
}

/// Rows in the order of their ids are added up by our kernel, each id's in one order.
void embedding_add_cuda(at::Tensor table, const at::Tensor& ids, const at::Tensor& rows) {
  const auto* kernels = cuda_row_kernels(rows);
  if (kernels == nullptr || table.scalar_type() != at::kFloat || !table.is_contiguous()) {
    embedding_add_composite(table, ids, rows);
    return;
  }
  TORCH_CHECK(
      ids.dim() == 1 && rows.dim() == 2 && rows.size(0) == ids.size(0) &&
          rows.size(1) == table.size(1),
      "embedding_add needs ids [n] and rows [n, columns] of a table [vocab, columns]; got ",
      ids.sizes(),
      ", ",
      rows.sizes(),
      " and ",
      table.sizes()
  );
  const auto [sorted, order] = ids.sort(/*stable=*/true, 0, /*descending=*/false);
  const at::Tensor x = rows.contiguous();
  const cuda::EmbeddingLaunch call{
      .type = cuda_type(x),
      .rows = ids.numel(),
      .columns = table.size(1),
      .ids = sorted.const_data_ptr<int64_t>(),
      .order = order.const_data_ptr<int64_t>(),
      .x = x.const_data_ptr(),
      .table = table.mutable_data_ptr<float>()};
  start_kernel(kernels->embedding, call, table.device());
}

void embedding_add_meta(at::Tensor, const at::Tensor&, const at::Tensor&) {}

at::Tensor dropout_cpu(
    const at::Tensor& x,
    double p,
    int64_t key,
    const at::Tensor& samples,
    const at::Tensor& tokens,
    int64_t first_feature
) {
  const at::Tensor input = x.contiguous();
  at::Tensor output = at::empty_like(input);
  const int64_t batch = x.size(1);
  const int64_t features = x.size(2);
  const auto* sample = samples.const_data_ptr<int64_t>();
  const auto* token = tokens.const_data_ptr<int64_t>();
  const auto threshold = static_cast<uint32_t>(p * 0x1p32);
  const auto scale = static_cast<float>(1.0 / (1.0 - p));
  if (const auto* kernel = row_kernels(input)) {
    const kernels::DropoutCall call{
        .batch = batch,
        .features = features,
        .first_feature = first_feature,
        .x = input.const_data_ptr(),
        .y = output.mutable_data_ptr(),
        .samples = sample,
        .tokens = token,
        .key = static_cast<uint64_t>(key),
        .threshold = threshold,
        .scale = scale};
    over_rows(x.size(0) * batch, features, [&](int64_t begin, int64_t end) {
      kernel->dropout(call, begin, end);
    });
    return output;
  }
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "dropout", [&] {
    const auto* in = input.const_data_ptr<scalar_t>();
    auto* out = output.mutable_data_ptr<scalar_t>();
    parallel_for(0, x.size(0) * batch, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const auto high = static_cast<uint64_t>(sample[row % batch]);
        const uint64_t low = static_cast<uint64_t>(token[row / batch]) << 32;
        for (int64_t i = 0; i < features;) {
          const int64_t feature = first_feature + i;
          const auto words =
              philox(static_cast<uint64_t>(key), low | static_cast<uint64_t>(feature / 4), high);
          for (int64_t lane = feature % 4; lane < 4 && i < features; ++lane, ++i) {
            const bool kept = words[static_cast<size_t>(lane)] >= threshold;
            const int64_t at = row * features + i;
            out[at] = kept ? static_cast<scalar_t>(in[at] * scale) : scalar_t(0);
          }
        }
      }
    });
  });
  return output;
}

at::Tensor dropout_host(
    const at::Tensor& x,
    double p,
    int64_t key,
    const at::Tensor& samples,
    const at::Tensor& tokens,
    int64_t first_feature
) {
  return dropout_cpu(x.cpu(), p, key, samples.cpu(), tokens.cpu(), first_feature).to(x.device());
}

at::Tensor dropout_cuda(
    const at::Tensor& x,
    double p,
    int64_t key,
    const at::Tensor& samples,
    const at::Tensor& tokens,
    int64_t first_feature
) {
  const auto* kernels = cuda_row_kernels(x);
  if (kernels == nullptr) {
    return dropout_host(x, p, key, samples, tokens, first_feature);
  }
  const at::Tensor input = x.contiguous(), sample = samples.contiguous(),
                   token = tokens.contiguous();
  at::Tensor output = at::empty_like(input);
  const cuda::DropoutLaunch call{
      .type = cuda_type(x),
      .rows = x.size(0) * x.size(1),
      .batch = x.size(1),
      .features = x.size(2),
      .first_feature = first_feature,
      .x = input.const_data_ptr(),
      .y = output.mutable_data_ptr(),
      .samples = sample.const_data_ptr<int64_t>(),
      .tokens = token.const_data_ptr<int64_t>(),
      .key = static_cast<uint64_t>(key),
      .threshold = static_cast<uint32_t>(p * 0x1p32),
      .scale = static_cast<float>(1.0 / (1.0 - p))};
  start_kernel(kernels->dropout, call, x.device());
  return output;
}

at::Tensor
dropout_meta(const at::Tensor& x, double, int64_t, const at::Tensor&, const at::Tensor&, int64_t) {
  const at::Tensor input = x.contiguous(); // as kernels read it
  return at::empty_like(input);
}

} // namespace

void register_token_ops(Libraries& libraries) {
  libraries.definitions.def("embedding_add_(Tensor(a!) table, Tensor ids, Tensor rows) -> ()");
  libraries.definitions.def("dropout(Tensor x, float p, int key, Tensor samples, Tensor tokens, "
                            "int first_feature) -> Tensor");
  libraries.cpu.impl("embedding_add_", embedding_add_cpu);
  libraries.cpu.impl("dropout", dropout_cpu);
  libraries.cuda.impl("embedding_add_", embedding_add_cuda);
  libraries.cuda.impl("dropout", dropout_cuda);
  libraries.plain.impl("embedding_add_", embedding_add_composite);
  libraries.plain.impl("dropout", dropout_host);
  libraries.meta.impl("embedding_add_", embedding_add_meta);
  libraries.meta.impl("dropout", dropout_meta);
}

void embedding_add_(at::Tensor table, const at::Tensor& ids, const at::Tensor& rows) {
  static const auto op = find_op<decltype(embedding_add_meta)>("megahost::embedding_add_");
  op.call(std::move(table), ids, rows);
}

at::Tensor dropout(
    const at::Tensor& x,
    double p,
    int64_t key,
    const at::Tensor& samples,
    const at::Tensor& tokens,
    int64_t first_feature
) {
  static const auto op = find_op<decltype(dropout_meta)>("megahost::dropout");
  return op.call(x, p, key, samples, tokens, first_feature);
}

} // namespace mh::ops
