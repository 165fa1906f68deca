#include "core/kernels/gemm.hpp"
#include "core/kernels/level.hpp"
#include "core/kernels/planned_gpu.hpp"
#include "core/kernels/registration.hpp"
#include "core/kernels/row_kernels.hpp"
#include "megahost/nn/expert_kernel.hpp"
#include "megahost/saved.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <ATen/record_function.h>

#include <algorithm>

namespace mh::ops {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Pair = std::tuple<Tensor, Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Tensor slots_like(const Tensor& choices) {
  return at::empty(choices.sizes(), choices.options());
}

// One pass counts, one assigns slots: 8 bytes a choice, so one thread does it.
Pair slots_cpu(const Tensor& choices, int64_t first, int64_t experts, int64_t pad) {
  const Tensor input = choices.contiguous();
  Tensor slots = slots_like(input);
  Tensor ends = at::empty({experts + 1}, input.options());
  const auto* choice = input.const_data_ptr<int64_t>();
  auto* slot = slots.mutable_data_ptr<int64_t>();
  auto* end = ends.mutable_data_ptr<int64_t>();
  std::vector<int64_t> next(static_cast<size_t>(experts), 0);
  const int64_t count = input.numel();
  const auto mine = [&](int64_t i) { return choice[i] >= first && choice[i] < first + experts; };
  for (int64_t i = 0; i < count; ++i) {
    if (mine(i)) {
      ++next[static_cast<size_t>(choice[i] - first)];
    }
  }
  end[0] = 0;
  for (int64_t e = 0; e < experts; ++e) {
    auto& number = next[static_cast<size_t>(e)];
    TORCH_CHECK(pad == 0 || number <= pad, "expert ", first + e, " has more than ", pad, " rows");
    end[e + 1] = end[e] + (pad > 0 ? pad : number);
    number = end[e];
  }
  for (int64_t i = 0; i < count; ++i) {
    slot[i] = mine(i) ? next[static_cast<size_t>(choice[i] - first)]++ : -1;
  }
  return {slots, ends};
}

Pair slots_plain(const Tensor& choices, int64_t first, int64_t experts, int64_t pad) {
  const Tensor own = (choices - first).reshape({-1});
  const Tensor mine = own.ge(0).bitwise_and(own.lt(experts));
  const Tensor key = own.masked_fill(mine.bitwise_not(), experts);
  const auto [sorted, order] = key.sort(/*stable=*/true, 0, /*descending=*/false);
  Tensor place = at::empty_like(order);
  place.scatter_(0, order, at::arange(order.numel(), order.options()));
  const Tensor counts =
      at::zeros({experts + 1}, key.options()).scatter_add_(0, key, mine.to(at::kLong));
  const Tensor true_ends =
      at::cat({at::zeros({1}, key.options()), counts.narrow(0, 0, experts).cumsum(0)});
  Tensor ends = true_ends;
  Tensor slots = place;
  if (pad > 0) {
    ends = at::arange(experts + 1, key.options()) * pad;
    slots = place - true_ends.index_select(0, key) + ends.index_select(0, key);
  }
  return {slots.masked_fill(mine.bitwise_not(), -1).view(choices.sizes()), ends};
}

Pair slots_meta(const Tensor& choices, int64_t, int64_t experts, int64_t) {
  return {slots_like(choices), at::empty({experts + 1}, choices.options())};
}

void check(const Tensor& tokens, int64_t rows, const Tensor& slots, const char* what) {
  TORCH_CHECK(
      tokens.dim() == 2 && slots.dim() == 2 && slots.scalar_type() == at::kLong &&
          rows == slots.size(0),
      what,
      " needs rows [tokens, n] and slots [tokens, k] of int64; got ",
      tokens.sizes(),
      " and ",
      slots.sizes()
  );
}

Tensor weights_or_ones(const OptionalTensor& weights, const Tensor& slots, const Tensor& x) {
  const Tensor taken = slots.ge(0).to(statistics_type(x));
  return weights ? taken * *weights : taken;
}

Tensor
scatter_plain(const Tensor& x, const Tensor& slots, const OptionalTensor& weights, int64_t count) {
  check(x, x.size(0), slots, "expert_scatter");
  const Tensor scaled = x.to(statistics_type(x)).unsqueeze(1) *
                        weights_or_ones(weights, slots, x).unsqueeze(2); // [tokens, k, n]
  const Tensor to = slots.masked_fill(slots.lt(0), count).reshape({-1});
  return at::zeros({count + 1, x.size(1)}, x.options())
      .index_copy_(0, to, scaled.reshape({-1, x.size(1)}).to(x.scalar_type()))
      .narrow(0, 0, count);
}

Tensor gather_plain(const Tensor& y, const Tensor& slots, const OptionalTensor& weights) {
  check(y, slots.size(0), slots, "expert_gather");
  if (y.size(0) == 0) {
    return at::zeros({slots.size(0), y.size(1)}, y.options());
  }
  const Tensor rows = y.to(statistics_type(y))
                          .index_select(0, slots.clamp_min(0).reshape({-1}))
                          .view({slots.size(0), slots.size(1), y.size(1)});
  return (rows * weights_or_ones(weights, slots, y).unsqueeze(2)).sum(1).to(y.scalar_type());
}

Pair gather_backward_plain(
    const Tensor& dy, const Tensor& y, const Tensor& slots, const Tensor& weights
) {
  const auto type = statistics_type(y);
  if (y.size(0) == 0) {
    return {at::zeros_like(y), at::zeros(slots.sizes(), slots.options().dtype(type))};
  }
  const Tensor rows = y.to(type)
                          .index_select(0, slots.clamp_min(0).reshape({-1}))
                          .view({slots.size(0), slots.size(1), y.size(1)});
  const Tensor change = (rows * dy.to(type).unsqueeze(1)).sum(2) * slots.ge(0).to(type);
  return {scatter_plain(dy, slots, weights, y.size(0)), change};
}

/// The CPU's kernels for these tensors, or nullptr.
const kernels::ExpertKernels* expert_kernels(const Tensor& x) {
  if (x.scalar_type() == at::kFloat) {
    return &kernels::table().experts_fp32;
  }
  return x.scalar_type() == at::kBFloat16 ? &kernels::table().experts_bf16 : nullptr;
}

kernels::ExpertCall call_of(const Tensor& slots, const Tensor& weights, int64_t columns) {
  kernels::ExpertCall call{};
  call.columns = columns;
  call.choices = slots.size(1);
  call.slot = slots.const_data_ptr<int64_t>();
  call.weight = weights.defined() ? weights.const_data_ptr<float>() : nullptr;
  return call;
}

Tensor flat_weights(const OptionalTensor& weights) {
  return weights ? weights->to(at::kFloat).contiguous() : Tensor();
}

/// Memory for rows: zeros where some slots stay empty, else all of it is written.
Tensor room_for(int64_t count, const Tensor& like, const Tensor& slots) {
  const auto* slot = slots.const_data_ptr<int64_t>();
  const int64_t taken = std::count_if(slot, slot + slots.numel(), [](int64_t s) { return s >= 0; });
  return taken == count ? at::empty({count, like.size(1)}, like.options())
                        : at::zeros({count, like.size(1)}, like.options());
}

Tensor
scatter_cpu(const Tensor& x, const Tensor& slots, const OptionalTensor& weights, int64_t count) {
  const auto* kernel = expert_kernels(x);
  if (kernel == nullptr) {
    return scatter_plain(x, slots, weights, count);
  }
  check(x, x.size(0), slots, "expert_scatter");
  const Tensor input = x.contiguous(), place = slots.contiguous(), factors = flat_weights(weights);
  Tensor out = room_for(count, x, place);
  auto call = call_of(place, factors, x.size(1));
  call.tokens = input.const_data_ptr();
  call.to_slots = out.mutable_data_ptr();
  constexpr size_t kCached = size_t{8} << 20; // more than stays for whoever reads it next
  const size_t row_bytes = x.element_size() * static_cast<size_t>(x.size(1));
  call.streams = !weights && out.nbytes() > kCached && row_bytes % 64 == 0;
  over_rows(slots.size(0), call.columns * call.choices, [&](int64_t begin, int64_t end) {
    kernel->scatter(call, begin, end);
  });
  return out;
}

Tensor gather_cpu(const Tensor& y, const Tensor& slots, const OptionalTensor& weights) {
  const auto* kernel = expert_kernels(y);
  if (kernel == nullptr) {
    return gather_plain(y, slots, weights);
  }
  check(y, slots.size(0), slots, "expert_gather");
  const Tensor input = y.contiguous(), place = slots.contiguous(), factors = flat_weights(weights);
  Tensor out = at::empty({slots.size(0), y.size(1)}, y.options());
  auto call = call_of(place, factors, y.size(1));
  call.slots = input.const_data_ptr();
  call.to_tokens = out.mutable_data_ptr();
  over_rows(slots.size(0), call.columns * call.choices, [&](int64_t begin, int64_t end) {
    kernel->gather(call, begin, end);
  });
  return out;
}

Pair gather_backward_cpu(
    const Tensor& gradient, const Tensor& y, const Tensor& slots, const Tensor& weights
) {
  const auto* kernel = expert_kernels(y);
  if (kernel == nullptr || gradient.scalar_type() != y.scalar_type()) {
    return gather_backward_plain(gradient, y, slots, weights);
  }
  const Tensor dy = gradient.contiguous(), rows = y.contiguous(), place = slots.contiguous();
  const Tensor factors = flat_weights(weights);
  Tensor out = room_for(y.size(0), y, place);
  Tensor change = at::empty(slots.sizes(), slots.options().dtype(at::kFloat));
  auto call = call_of(place, factors, y.size(1));
  call.tokens = dy.const_data_ptr();
  call.slots = rows.const_data_ptr();
  call.to_slots = out.mutable_data_ptr();
  call.weight_change = change.mutable_data_ptr<float>();
  over_rows(slots.size(0), call.columns * call.choices, [&](int64_t begin, int64_t end) {
    kernel->backward(call, begin, end);
  });
  return {out, change};
}

Tensor scatter_meta(const Tensor& x, const Tensor& slots, const OptionalTensor&, int64_t count) {
  check(x, x.size(0), slots, "expert_scatter");
  return at::empty({count, x.size(1)}, x.options());
}

Tensor gather_meta(const Tensor& y, const Tensor& slots, const OptionalTensor&) {
  check(y, slots.size(0), slots, "expert_gather");
  return at::empty({slots.size(0), y.size(1)}, y.options());
}

Pair gather_backward_meta(const Tensor&, const Tensor& y, const Tensor& slots, const Tensor&) {
  return {
      at::empty(y.sizes(), y.options()),
      at::empty(slots.sizes(), slots.options().dtype(statistics_type(y)))};
}

void check_product(const Tensor& x, const Tensor& w, const Tensor& ends, bool transposed) {
  TORCH_CHECK(
      x.dim() == 2 && w.dim() == 3 && x.size(1) == w.size(transposed ? 2 : 1) &&
          ends.numel() == w.size(0) + 1 && at::isIntegralType(ends.scalar_type(), false),
      "grouped_product needs x [rows, k], w [experts, n, k] and where each expert's rows begin, in "
      "integers; got ",
      x.sizes(),
      ", ",
      w.sizes(),
      ", ",
      ends.sizes()
  );
}

/// For the GEMMs of all experts, in the type in which they are made: they are rounded once.
Tensor product_room(const Tensor& x, const Tensor& w, bool transposed) {
  const auto type = libtorch_multiplies(x) ? x.scalar_type() : at::kFloat;
  return at::empty({x.size(0), w.size(transposed ? 1 : 2)}, x.options().dtype(type));
}

/// Runs `each` (expert, first row, rows) for experts that have rows. The host waits for the ends of
/// a GPU.
template <class Each>
void over_experts(const Tensor& ends, int64_t rows, const Each& each) {
  const Tensor host = ends.to(at::kCPU, at::kLong);
  const auto* end = host.const_data_ptr<int64_t>();
  TORCH_CHECK(
      end[host.numel() - 1] <= rows, "experts' rows end at ", end[host.numel() - 1], " of ", rows
  );
  for (int64_t e = 0; e + 1 < host.numel(); ++e) {
    if (end[e + 1] > end[e]) {
      each(e, end[e], end[e + 1] - end[e]);
    }
  }
}

Tensor product_plain(const Tensor& x, const Tensor& w, const Tensor& ends, bool transposed) {
  check_product(x, w, ends, transposed);
  const at::RecordFunctionGuard whole(false); // counted as one operation
  Tensor y = product_room(x, w, transposed);
  over_experts(ends, x.size(0), [&](int64_t e, int64_t first, int64_t rows) {
    const Tensor matrix = transposed ? w.select(0, e).t() : w.select(0, e);
    Tensor out = y.narrow(0, first, rows);
    const Tensor some = x.narrow(0, first, rows);
    if (libtorch_multiplies(some, matrix)) {
      at::mm_out(out, some, matrix);
    } else {
      gemm_(out, some, matrix, /*add=*/false);
    }
  });
  return y.to(x.scalar_type());
}

/// The ends of the experts' rows in the type that LibTorch's grouped GEMMs take; a view if they are
/// int32.
Tensor offsets_of(const Tensor& ends) {
  return ends.narrow(0, 1, ends.numel() - 1).to(at::kInt);
}

Tensor product_cuda(const Tensor& x, const Tensor& w, const Tensor& ends, bool transposed) {
  check_product(x, w, ends, transposed);
  if (x.size(0) == 0) { // there is nothing to wait for the ends for
    return product_room(x, w, transposed);
  }
  if (x.scalar_type() != at::kBFloat16) {
    return product_plain(x, w, ends, transposed);
  }
  return at::_grouped_mm(x, transposed ? w.transpose(1, 2) : w, offsets_of(ends));
}

Tensor product_meta(const Tensor& x, const Tensor& w, const Tensor& ends, bool transposed) {
  check_product(x, w, ends, transposed);
  return product_room(x, w, transposed).to(x.scalar_type());
}

/// Some rows; a row of zeros behind an odd number of them if `even`.
Tensor rows_of(const Tensor& x, int64_t first, int64_t rows, bool even) {
  const Tensor some = x.narrow(0, first, rows);
  return even && rows % 2 == 1 ? at::cat({some, at::zeros({1, x.size(1)}, x.options())}) : some;
}

void check_gradient(const Tensor& sum, const Tensor& dy, const Tensor& x, const Tensor& ends) {
  TORCH_CHECK(
      sum.dim() == 3 && sum.size(1) == dy.size(1) && sum.size(2) == x.size(1) &&
          dy.size(0) == x.size(0) && ends.numel() == sum.size(0) + 1,
      "grouped_gradient_ needs sum [experts, n, k], dy [rows, n] and x [rows, k]; got ",
      sum.sizes(),
      ", ",
      dy.sizes(),
      ", ",
      x.sizes()
  );
}

void gradient_plain(Tensor sum, const Tensor& dy, const Tensor& x, const Tensor& ends) {
  check_gradient(sum, dy, x, ends);
  const at::RecordFunctionGuard whole(false);
  const bool even = x.is_cpu() && x.scalar_type() == at::kBFloat16; // depth that is multiplied fast
  over_experts(ends, x.size(0), [&](int64_t e, int64_t first, int64_t rows) {
    const Tensor a = rows_of(dy, first, rows, even);
    gemm_(sum.select(0, e), a.t(), rows_of(x, first, rows, even), /*add=*/true);
  });
}

void gradient_cuda(Tensor sum, const Tensor& dy, const Tensor& x, const Tensor& ends) {
  check_gradient(sum, dy, x, ends);
  if (x.size(0) == 0) {
    return;
  }
  if (x.scalar_type() != at::kBFloat16) {
    gradient_plain(sum, dy, x, ends);
  } else {
    // Products of no rows are not written on some GPUs (pytorch issue 172439).
    const int64_t experts = sum.size(0);
    const Tensor idle = ends.narrow(0, 0, experts).eq(ends.narrow(0, 1, experts));
    Tensor products = at::_grouped_mm(dy.t(), x, offsets_of(ends));
    sum.add_(products.masked_fill_(idle.view({-1, 1, 1}), 0));
  }
}

/// On a GPU all experts' GEMMs are made before they are added.
void gradient_meta(Tensor sum, const Tensor& dy, const Tensor& x, const Tensor& ends) {
  check_gradient(sum, dy, x, ends);
  const bool made = PlannedGpu::active() && x.scalar_type() == at::kBFloat16;
  const Tensor products = at::empty({made ? sum.numel() : 0}, x.options());
}

Tensor scatter(const Tensor& x, const Tensor& slots, const OptionalTensor& weights, int64_t count) {
  static const auto op = find_op<decltype(scatter_cpu)>("megahost::expert_scatter");
  return op.call(x, slots, weights, count);
}

Tensor gather(const Tensor& y, const Tensor& slots, const OptionalTensor& weights) {
  static const auto op = find_op<decltype(gather_cpu)>("megahost::expert_gather");
  return op.call(y, slots, weights);
}

struct ToSlots : torch::autograd::Function<ToSlots> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& slots, int64_t count) {
    ctx->save_for_backward({slots});
    return scatter(x, slots, std::nullopt, count);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    return {gather(gradients[0], ctx->get_saved_variables()[0], std::nullopt), Tensor(), Tensor()};
  }
};

struct FromSlots : torch::autograd::Function<FromSlots> {
  struct Saved {
    int64_t rows; // rows of y
  };

  static Tensor forward(
      AutogradContext* ctx, const Tensor& y, const Tensor& slots, const OptionalTensor& weights
  ) {
    const bool weighted = weights.has_value();
    ctx->save_for_backward({weighted ? y : Tensor(), slots, weights.value_or(Tensor())});
    save(ctx, Saved{y.size(0)});
    return gather(y, slots, weights);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    static const auto op =
        find_op<decltype(gather_backward_cpu)>("megahost::expert_gather_backward");
    const auto saved = ctx->get_saved_variables();
    if (!saved[0].defined()) {
      return {
          scatter(gradients[0], saved[1], std::nullopt, get_saved<Saved>(ctx).rows),
          Tensor(),
          Tensor()};
    }
    auto [dy, change] = op.call(gradients[0], saved[0], saved[1], saved[2]);
    return {dy, Tensor(), change};
  }
};

} // namespace

void register_experts(Libraries& libraries) {
  auto& define = libraries.definitions;
  define.def("expert_slots(Tensor choices, int first, int experts, int pad) -> (Tensor, Tensor)");
  define.def("expert_scatter(Tensor x, Tensor slots, Tensor? weights, int count) -> Tensor");
  define.def("expert_gather(Tensor y, Tensor slots, Tensor? weights) -> Tensor");
  define.def("expert_gather_backward(Tensor dy, Tensor y, Tensor slots, Tensor weights) -> "
             "(Tensor, Tensor)");
  define.def("grouped_product(Tensor x, Tensor w, Tensor ends, bool transposed) -> Tensor");
  define.def("grouped_gradient_(Tensor(a!) sum, Tensor dy, Tensor x, Tensor ends) -> ()");
  libraries.cpu.impl("expert_slots", slots_cpu);
  libraries.cpu.impl("expert_scatter", scatter_cpu);
  libraries.cpu.impl("expert_gather", gather_cpu);
  libraries.cpu.impl("expert_gather_backward", gather_backward_cpu);
  libraries.plain.impl("expert_slots", slots_plain);
  libraries.plain.impl("expert_scatter", scatter_plain);
  libraries.plain.impl("expert_gather", gather_plain);
  libraries.plain.impl("expert_gather_backward", gather_backward_plain);
  libraries.cuda.impl("grouped_product", product_cuda);
  libraries.cuda.impl("grouped_gradient_", gradient_cuda);
  libraries.plain.impl("grouped_product", product_plain);
  libraries.plain.impl("grouped_gradient_", gradient_plain);
  libraries.meta.impl("expert_slots", slots_meta);
  libraries.meta.impl("expert_scatter", scatter_meta);
  libraries.meta.impl("expert_gather", gather_meta);
  libraries.meta.impl("expert_gather_backward", gather_backward_meta);
  libraries.meta.impl("grouped_product", product_meta);
  libraries.meta.impl("grouped_gradient_", gradient_meta);
}

std::tuple<Tensor, Tensor>
expert_slots(const Tensor& choices, int64_t first, int64_t experts, int64_t pad) {
  static const auto op = find_op<decltype(slots_cpu)>("megahost::expert_slots");
  return op.call(choices, first, experts, pad);
}

Tensor to_slots(const Tensor& x, const Tensor& slots, int64_t count) {
  return ToSlots::apply(x, slots, count);
}

Tensor from_slots(const Tensor& y, const Tensor& slots, const Tensor& weights) {
  return FromSlots::apply(y, slots, weights.defined() ? OptionalTensor(weights) : std::nullopt);
}

Tensor grouped_product(const Tensor& x, const Tensor& w, const Tensor& ends, bool transposed) {
  static const auto op = find_op<decltype(product_plain)>("megahost::grouped_product");
  return op.call(x, w, ends, transposed);
}

void grouped_gradient_(Tensor sum, const Tensor& dy, const Tensor& x, const Tensor& ends) {
  static const auto op = find_op<decltype(gradient_plain)>("megahost::grouped_gradient_");
  op.call(std::move(sum), dy, x, ends);
}

} // namespace mh::ops
