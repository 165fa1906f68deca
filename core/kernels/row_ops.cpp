#include "core/kernels/row_ops.hpp"

#include "core/kernels/registration.hpp"
#include "core/kernels/row_kernels.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace mh::ops {

at::Tensor rows_of(const at::Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}

namespace {

using at::Tensor;

// ---- rotary ----

void check_rotary(const Tensor& x, const Tensor& table) {
  TORCH_CHECK(
      x.dim() == 4 && table.dim() == 5 && table.size(0) == 2 && table.size(1) == x.size(0) &&
          (table.size(2) == 1 || table.size(2) == x.size(1)) && 2 * table.size(4) <= x.size(3),
      "rotary needs x [seq, batch, heads, dim] and a table [2, seq, 1 or batch, 1, half]; got ",
      x.sizes(),
      ", ",
      table.sizes()
  );
}

Tensor rotated_plain(const Tensor& x, const Tensor& table, bool inverse) {
  check_rotary(x, table);
  const int64_t half = table.size(-1);
  const auto type = statistics_type(x);
  const Tensor cosine = table.select(0, 0);
  const Tensor sine = inverse ? table.select(0, 1).neg() : table.select(0, 1);
  const Tensor a = x.narrow(-1, 0, half).to(type);
  const Tensor b = x.narrow(-1, half, half).to(type);
  return at::cat(
      {(a * cosine).addcmul_(b, sine, -1).to(x.scalar_type()),
       (b * cosine).addcmul_(a, sine).to(x.scalar_type()),
       x.narrow(-1, 2 * half, x.size(-1) - 2 * half)},
      -1
  );
}

Tensor rotary_plain(at::TensorList parts, const Tensor& table, int64_t rotated, bool inverse) {
  std::vector<Tensor> made;
  for (const Tensor& part : parts) {
    const bool turns = static_cast<int64_t>(made.size()) < rotated;
    made.push_back(turns ? rotated_plain(part, table, inverse) : part);
  }
  return made.size() == 1 ? made.front() : at::cat(made, 2);
}

void rotate_cpu(
    const Tensor& input, const Tensor& table, bool inverse, const Tensor& out, int64_t first_head
) {
  check_rotary(input, table);
  const Tensor x = input.stride(3) == 1 ? input : input.contiguous();
  const auto* cosine = table.const_data_ptr<float>();
  const kernels::RotaryCall call{
      .batch = x.size(1),
      .heads = x.size(2),
      .dim = x.size(3),
      .half = table.size(4),
      .x = x.const_data_ptr(),
      .x_seq = x.stride(0),
      .x_batch = x.stride(1),
      .x_head = x.stride(2),
      .y = out.narrow(2, first_head, x.size(2)).mutable_data_ptr(),
      .y_row = out.stride(1),
      .cosine = cosine,
      .sine = cosine + table.stride(0),
      .table_batch = table.size(2),
      .inverse = inverse};
  over_rows(x.size(0) * x.size(1), call.heads * call.dim, [&](int64_t begin, int64_t end) {
    row_kernels(x)->rotary(call, begin, end);
  });
}

Tensor empty_rotary(at::TensorList parts) {
  const Tensor& x = parts.front();
  int64_t heads = 0;
  for (const Tensor& part : parts) {
    TORCH_CHECK(
        part.dim() == 4 && part.size(0) == x.size(0) && part.size(1) == x.size(1) &&
            part.size(3) == x.size(3) && part.scalar_type() == x.scalar_type(),
        "rotary needs parts of one type, [seq, batch, heads, dim], that differ in heads only; got ",
        x.sizes(),
        " and ",
        part.sizes()
    );
    heads += part.size(2);
  }
  return at::empty({x.size(0), x.size(1), heads, x.size(3)}, x.options());
}

Tensor rotary_cpu(at::TensorList parts, const Tensor& angles, int64_t rotated, bool inverse) {
  Tensor out = empty_rotary(parts);
  if (row_kernels(out) == nullptr || angles.scalar_type() != at::kFloat) {
    return rotary_plain(parts, angles, rotated, inverse);
  }
  const Tensor table = angles.contiguous();
  int64_t head = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (static_cast<int64_t>(i) < rotated) {
      rotate_cpu(parts[i], table, inverse, out, head);
    } else {
      out.narrow(2, head, parts[i].size(2)).copy_(parts[i]);
    }
    head += parts[i].size(2);
  }
  return out;
}

Tensor rotary_cuda(at::TensorList parts, const Tensor& angles, int64_t rotated, bool inverse) {
  const Tensor out = empty_rotary(parts);
  const auto* kernels = cuda_row_kernels(out);
  if (kernels == nullptr || angles.scalar_type() != at::kFloat || parts.size() > 3) {
    return rotary_plain(parts, angles, rotated, inverse);
  }
  const Tensor table = angles.contiguous();
  const auto* cosine = table.const_data_ptr<float>();
  cuda::RotaryLaunch call{
      .type = cuda_type(out),
      .rows = out.size(0) * out.size(1),
      .batch = out.size(1),
      .heads = out.size(2),
      .dim = out.size(3),
      .half = table.size(4),
      .parts = {},
      .rotated = static_cast<int32_t>(rotated),
      .y = out.mutable_data_ptr(),
      .cosine = cosine,
      .sine = cosine + table.stride(0),
      .table_batch = table.size(2),
      .inverse = inverse};
  std::vector<Tensor> kept;
  for (const Tensor& part : parts) {
    check_rotary(part, table);
    const Tensor& x = kept.emplace_back(part.stride(3) == 1 ? part : part.contiguous());
    call.parts[kept.size() - 1] = {
        x.const_data_ptr(), x.size(2), x.stride(0), x.stride(1), x.stride(2)};
  }
  start_kernel(kernels->rotary, call, out.device());
  return out;
}

Tensor rotary_meta(at::TensorList parts, const Tensor& table, int64_t, bool) {
  check_rotary(parts.front(), table);
  return empty_rotary(parts);
}

// ---- vocabulary ----

void check_vocab(const Tensor& z, const Tensor& labels, int64_t entries) {
  TORCH_CHECK(
      z.dim() == 2 && labels.dim() == 1 && labels.size(0) == z.size(0) && entries >= 0 &&
          entries <= z.size(1),
      "the vocabulary's softmax needs logits [n, columns], labels [n] and no more entries than "
      "columns; got ",
      z.sizes(),
      ", ",
      labels.sizes(),
      ", ",
      entries
  );
}

/// Labels as columns (0 where they are not among the entries), and which are.
std::pair<Tensor, Tensor> columns(const Tensor& labels, int64_t first, int64_t entries) {
  const Tensor local = labels - first;
  return {
      local.clamp(0, std::max<int64_t>(entries - 1, 0)).unsqueeze(1),
      local.ge(0).bitwise_and(local.lt(entries)).unsqueeze(1)};
}

Tensor statistics_plain(const Tensor& z, const Tensor& labels, int64_t first, int64_t entries) {
  check_vocab(z, labels, entries);
  const auto options = z.options().dtype(statistics_type(z));
  if (entries == 0) {
    Tensor none = at::empty({3, z.size(0)}, options).zero_();
    none.select(0, 0).fill_(-std::numeric_limits<float>::infinity());
    return none;
  }
  const Tensor wide = z.narrow(1, 0, entries).to(options.dtype());
  const Tensor top = wide.amax(1, /*keepdim=*/true);
  const auto [column, mine] = columns(labels, first, entries);
  return at::stack(
      {top.squeeze(1),
       (wide - top).exp_().sum(1),
       wide.gather(1, column).masked_fill(mine.bitwise_not(), 0).squeeze(1)}
  );
}

void vocab_gradient_plain(
    Tensor z,
    const Tensor& labels,
    const Tensor& lse,
    const Tensor& scale,
    int64_t first,
    int64_t entries
) {
  check_vocab(z, labels, entries);
  if (entries == 0) {
    z.zero_();
    return;
  }
  const auto [column, mine] = columns(labels, first, entries);
  Tensor wide = z.narrow(1, 0, entries).to(lse.scalar_type()).sub(lse.unsqueeze(1)).exp_();
  wide.scatter_add_(1, column, mine.to(wide.scalar_type()).neg());
  z.narrow(1, 0, entries).copy_(wide.mul_(scale.unsqueeze(1)));
  z.narrow(1, entries, z.size(1) - entries).zero_();
}

/// `Call`: of a CPU's kernels or a GPU's.
template <class Call>
Call vocab_call(const Tensor& z, const Tensor& labels, int64_t first, int64_t entries) {
  Call call{};
  call.columns = z.size(1);
  call.entries = entries;
  call.first = first;
  call.z = z.mutable_data_ptr();
  call.labels = labels.const_data_ptr<int64_t>();
  return call;
}

cuda::VocabLaunch
cuda_vocab_call(const Tensor& z, const Tensor& labels, int64_t first, int64_t entries) {
  auto call = vocab_call<cuda::VocabLaunch>(z, labels, first, entries);
  call.type = cuda_type(z);
  call.rows = z.size(0);
  return call;
}

/// A place for the statistics, which the call writes: [3, rows].
template <class Call>
Tensor statistics_of(Call& call, const Tensor& z) {
  const Tensor out = at::empty({3, z.size(0)}, z.options().dtype(at::kFloat));
  call.top = out.mutable_data_ptr<float>();
  call.sum = call.top + z.size(0);
  call.target = call.sum + z.size(0);
  return out;
}

Tensor statistics_cpu(const Tensor& z, const Tensor& ids, int64_t first, int64_t entries) {
  const auto* kernel = row_kernels(z);
  if (kernel == nullptr || entries == 0 || !z.is_contiguous()) {
    return statistics_plain(z, ids, first, entries);
  }
  check_vocab(z, ids, entries);
  const Tensor labels = ids.contiguous();
  auto call = vocab_call<kernels::VocabCall>(z, labels, first, entries);
  const Tensor out = statistics_of(call, z);
  over_rows(z.size(0), z.size(1), [&](int64_t begin, int64_t end) {
    kernel->vocab_forward(call, begin, end);
  });
  return out;
}

void vocab_gradient_cpu(
    Tensor z,
    const Tensor& ids,
    const Tensor& lse,
    const Tensor& scale,
    int64_t first,
    int64_t entries
) {
  const auto* kernel = row_kernels(z);
  if (kernel == nullptr || !z.is_contiguous() || lse.scalar_type() != at::kFloat ||
      scale.scalar_type() != at::kFloat) {
    vocab_gradient_plain(z, ids, lse, scale, first, entries);
    return;
  }
  check_vocab(z, ids, entries);
  const Tensor labels = ids.contiguous();
  const Tensor bases = lse.contiguous();
  const Tensor scales = scale.contiguous();
  auto call = vocab_call<kernels::VocabCall>(z, labels, first, entries);
  call.lse = bases.const_data_ptr<float>();
  call.scale = scales.const_data_ptr<float>();
  over_rows(z.size(0), z.size(1), [&](int64_t begin, int64_t end) {
    kernel->vocab_backward(call, begin, end);
  });
}

Tensor statistics_cuda(const Tensor& z, const Tensor& ids, int64_t first, int64_t entries) {
  const auto* kernels = cuda_row_kernels(z);
  if (kernels == nullptr || entries == 0 || !z.is_contiguous()) {
    return statistics_plain(z, ids, first, entries);
  }
  check_vocab(z, ids, entries);
  const Tensor labels = ids.contiguous();
  auto call = cuda_vocab_call(z, labels, first, entries);
  const Tensor out = statistics_of(call, z);
  start_kernel(kernels->vocab, call, z.device());
  return out;
}

void vocab_gradient_cuda(
    Tensor z,
    const Tensor& ids,
    const Tensor& lse,
    const Tensor& scale,
    int64_t first,
    int64_t entries
) {
  const auto* kernels = cuda_row_kernels(z);
  if (kernels == nullptr || entries == 0 || !z.is_contiguous() || lse.scalar_type() != at::kFloat ||
      scale.scalar_type() != at::kFloat) {
    vocab_gradient_plain(z, ids, lse, scale, first, entries);
    return;
  }
  check_vocab(z, ids, entries);
  const Tensor labels = ids.contiguous(), bases = lse.contiguous(), scales = scale.contiguous();
  auto call = cuda_vocab_call(z, labels, first, entries);
  call.lse = bases.const_data_ptr<float>();
  call.scale = scales.const_data_ptr<float>();
  start_kernel(kernels->vocab, call, z.device());
}

Tensor statistics_meta(const Tensor& z, const Tensor& labels, int64_t, int64_t entries) {
  check_vocab(z, labels, entries);
  return at::empty({3, z.size(0)}, z.options().dtype(statistics_type(z)));
}

void vocab_gradient_meta(
    Tensor z, const Tensor& labels, const Tensor&, const Tensor&, int64_t, int64_t entries
) {
  check_vocab(z, labels, entries);
}

// ---- sums of rows ----

void row_sums_plain(Tensor out, const Tensor& x) {
  out.add_(x.sum(0, /*keepdim=*/false, out.scalar_type()));
}

void row_sums_cpu(Tensor out, const Tensor& x) {
  const auto* kernel = row_kernels(x);
  if (kernel == nullptr || out.scalar_type() != at::kFloat || !out.is_contiguous()) {
    row_sums_plain(out, x);
    return;
  }
  const Tensor rows = x.contiguous();
  auto* sums = out.mutable_data_ptr<float>();
  over_rows(rows.size(1), rows.size(0), [&](int64_t begin, int64_t end) {
    kernel->add_row_sums(rows.const_data_ptr(), rows.size(0), rows.size(1), sums, begin, end);
  });
}

void row_sums_cuda(Tensor out, const Tensor& x) {
  const auto* kernels = cuda_row_kernels(x);
  if (kernels == nullptr || out.scalar_type() != at::kFloat || !out.is_contiguous()) {
    row_sums_plain(out, x);
    return;
  }
  const Tensor rows = x.contiguous();
  const cuda::RowSumsLaunch call{
      .type = cuda_type(x),
      .rows = rows.size(0),
      .columns = rows.size(1),
      .split = rows.size(1),
      .x = rows.const_data_ptr(),
      .sums = out.mutable_data_ptr<float>(),
      .rest = nullptr};
  start_kernel(kernels->row_sums, call, x.device());
}

void row_sums_meta(Tensor, const Tensor&) {}

} // namespace

void register_row_ops(Libraries& libraries) {
  auto& def = libraries.definitions;
  def.def("rotary(Tensor[] parts, Tensor table, int rotated, bool inverse) -> Tensor");
  def.def("vocab_statistics(Tensor z, Tensor labels, int first, int entries) -> Tensor");
  def.def("vocab_gradient_(Tensor(a!) z, Tensor labels, Tensor lse, Tensor scale, int first, "
          "int entries) -> ()");
  def.def("add_row_sums_(Tensor(a!) out, Tensor x) -> ()");
  const auto add = [&](const char* name, auto* cpu, auto* plain, auto* meta) {
    libraries.cpu.impl(name, cpu);
    libraries.plain.impl(name, plain);
    libraries.meta.impl(name, meta);
  };
  add("rotary", rotary_cpu, rotary_plain, rotary_meta);
  libraries.cuda.impl("rotary", rotary_cuda);
  add("vocab_statistics", statistics_cpu, statistics_plain, statistics_meta);
  add("vocab_gradient_", vocab_gradient_cpu, vocab_gradient_plain, vocab_gradient_meta);
  libraries.cuda.impl("vocab_statistics", statistics_cuda);
  libraries.cuda.impl("vocab_gradient_", vocab_gradient_cuda);
  add("add_row_sums_", row_sums_cpu, row_sums_plain, row_sums_meta);
  libraries.cuda.impl("add_row_sums_", row_sums_cuda);
}

Tensor rotary(at::TensorList parts, const Tensor& table, int64_t rotated, bool inverse) {
  static const auto op = find_op<decltype(rotary_cpu)>("megahost::rotary");
  return op.call(parts, table, rotated, inverse);
}

Tensor vocab_statistics(const Tensor& z, const Tensor& labels, int64_t first, int64_t entries) {
  static const auto op = find_op<decltype(statistics_cpu)>("megahost::vocab_statistics");
  return op.call(z, labels, first, entries);
}

void vocab_gradient_(
    Tensor z,
    const Tensor& labels,
    const Tensor& lse,
    const Tensor& scale,
    int64_t first,
    int64_t entries
) {
  static const auto op = find_op<decltype(vocab_gradient_cpu)>("megahost::vocab_gradient_");
  op.call(std::move(z), labels, lse, scale, first, entries);
}

void add_row_sums_(Tensor out, const Tensor& x) {
  static const auto op = find_op<decltype(row_sums_cpu)>("megahost::add_row_sums_");
  op.call(std::move(out), x);
}

} // namespace mh::ops
