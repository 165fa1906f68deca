#include "core/plan/operators.hpp"

#include "megahost/nn/attention_kernel.hpp"

#include <algorithm>
#include <initializer_list>
#include <unordered_map>

namespace mh {

namespace {

using EventKind = PlanEvent::Kind;

bool one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Operator classify(std::string_view name) {
  if (const auto cost = ops::find_cost(name)) {
    return {WorkKind::own, cost, name == "megahost::dropout"};
  }
  if (name.starts_with("autograd::")) { // a node of the graph, inside which operators run
    return {WorkKind::nothing};
  }
  if (!name.starts_with("aten::")) {
    return {};
  }
  const std::string_view op = name.substr(6);
  if (one_of(op, {"mm", "bmm", "_scaled_mm"})) {
    return {WorkKind::mm};
  }
  if (one_of(op, {"addmm", "addmm_", "baddbmm", "baddbmm_"})) {
    return {WorkKind::addmm};
  }
  if (op.starts_with("_scaled_dot_product_") && op.find("_attention") != std::string_view::npos) {
    return {WorkKind::attention};
  }
  if (one_of(op, {"linalg_qr", "_linalg_eigh"})) {
    return {WorkKind::factors};
  }
  if (op.starts_with("empty") || op.starts_with("new_empty") ||
      one_of(
          op,
          {"detach",
           "detach_",
           "alias",
           "set_",
           "resize_",
           "requires_grad_",
           "as_strided_",
           "is_same_size",
           "size",
           "stride",
           "_local_scalar_dense",
           "item"}
      )) {
    return {WorkKind::nothing};
  }
  if (one_of(op, {"copy_", "zero_", "fill_", "normal_", "uniform_"})) {
    return {WorkKind::writes};
  }
  return {
      op.ends_with("_") ? WorkKind::updates : WorkKind::other,
      nullptr,
      one_of(op, {"add", "add_", "mul", "mul_", "sub", "div", "div_", "_to_copy"})};
}

/// Each expert's rows are taken to be as many.
PlanEvent grouped(std::string_view name, Inputs inputs) {
  const auto& a = inputs[0].toTensor();
  const auto& b = inputs[1].toTensor();
  PlanEvent event{.kind = EventKind::product, .type = b.scalar_type()};
  if (name == "megahost::grouped_product") { // [rows, k] x [experts, k, n], or its transpose
    event.batch = b.size(0);
    event.m = (a.size(0) + event.batch - 1) / event.batch;
    event.k = a.size(1);
    event.n = b.size(inputs[3].toBool() ? 1 : 2);
  } else { // [experts, m, n] += [rows, m]t x [rows, n]
    const auto& c = inputs[2].toTensor();
    event.batch = a.size(0);
    event.m = b.size(1);
    event.n = c.size(1);
    event.k = (b.size(0) + event.batch - 1) / event.batch;
  }
  event.flops = 2.0 * static_cast<double>(event.batch * event.m) * static_cast<double>(event.n) *
                static_cast<double>(event.k);
  event.bytes = memory_of(inputs);
  return event;
}

} // namespace

const Operator& operator_of(const char* name) {
  thread_local std::unordered_map<const void*, Operator> known; // names live as long as schemas
  const auto found = known.find(name);
  return found != known.end() ? found->second : known.emplace(name, classify(name)).first->second;
}

double memory_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) {
    return 0;
  }
  return static_cast<double>(std::min(tensor.nbytes(), tensor.storage().nbytes()));
}

double memory_of(Inputs inputs) {
  double sum = 0;
  for (const auto& value : inputs) {
    for_tensors(value, [&](const at::Tensor& tensor) { sum += memory_of(tensor); });
  }
  return sum;
}

PlanEvent product_event(const at::Tensor& a, const at::Tensor& b) {
  PlanEvent event{.kind = EventKind::product, .type = a.scalar_type()};
  event.batch = a.dim() == 3 ? a.size(0) : 1;
  event.m = a.size(-2);
  event.k = a.size(-1);
  event.n = b.size(-1);
  event.flops = 2.0 * static_cast<double>(event.batch) * static_cast<double>(event.m) *
                static_cast<double>(event.n) * static_cast<double>(event.k);
  const double result = static_cast<double>(event.batch * event.m * event.n);
  event.bytes = memory_of(a) + memory_of(b) + result * static_cast<double>(a.element_size());
  return event;
}

/// QR with its Q takes 8/3 n^3 FLOPs, eigenvectors of a symmetric matrix 9 n^3.
///
/// Source:  Golub and Van Loan, Matrix Computations, 5.2 and 8.3
PlanEvent factors_event(std::string_view name, const at::Tensor& a) {
  PlanEvent event = product_event(a, a);
  const double times = name.ends_with("eigh") ? 9.0 / 2 : 4.0 / 3; // a GEMM has 2 n^3
  event.k = static_cast<int64_t>(times * static_cast<double>(event.k));
  event.flops *= times;
  return event;
}

/// [batch, heads, seq, dim]; a backward pass has the output's gradient before them.
PlanEvent attention_event(std::string_view name, Inputs inputs) {
  const bool backward = name.ends_with("_backward");
  const auto& q = inputs[backward ? 1 : 0].toTensor();
  const auto& k = inputs[backward ? 2 : 1].toTensor();
  bool causal = false; // the first flag of every variant
  for (const auto& value : inputs) {
    if (value.isBool()) {
      causal = value.toBool();
      break;
    }
  }
  const double pairs = ops::visible_pairs(q.size(2), k.size(2), causal, /*window=*/0);
  const double products = backward ? 5 : 2;
  PlanEvent event{.kind = EventKind::attention, .type = q.scalar_type()};
  event.batch = q.size(0) * q.size(1);
  event.m = q.size(2);
  event.n = k.size(2);
  event.k = q.size(3);
  event.backward = backward;
  event.flops = products * 2 * pairs * static_cast<double>(event.batch * event.k);
  event.bytes = memory_of(inputs) + memory_of(q);
  return event;
}

PlanEvent own_event(std::string_view name, ops::CostFunction cost, Inputs inputs) {
  if (name == "megahost::gemm_") {
    return product_event(inputs[1].toTensor(), inputs[2].toTensor());
  }
  if (name == "megahost::fp8_product") {
    return product_event(inputs[0].toTensor(), inputs[1].toTensor());
  }
  if (name.starts_with("megahost::grouped_")) {
    return grouped(name, inputs);
  }
  const auto [flops, bytes] = cost(inputs);
  PlanEvent event{.kind = EventKind::memory, .flops = flops, .bytes = bytes};
  if (inputs[0].isTensor()) {
    event.type = inputs[0].toTensor().scalar_type();
  }
  if (name.starts_with("megahost::attention")) {
    event.backward = name.ends_with("_backward");
    const auto& q = inputs[event.backward ? 1 : 0].toTensor(); // [queries, batch, heads, dim]
    event.kind = EventKind::attention;
    event.type = q.scalar_type();
    event.batch = q.size(1) * q.size(2);
    event.m = q.size(0);
    event.n = inputs[event.backward ? 2 : 1].toTensor().size(0);
    event.k = q.size(3);
    event.dropout = inputs[event.backward ? 13 : 10].toDouble() > 0;
  } else if (name.starts_with("megahost::vocab_")) {
    event.m = inputs[0].toTensor().numel();
  } else if (name == "megahost::update_") { // the first list: weights
    const auto list = std::find_if(inputs.begin(), inputs.end(), [](const auto& value) {
      return value.isTensorList();
    });
    for_tensors(*list, [&](const at::Tensor& weight) { event.m += weight.numel(); });
  }
  return event;
}

} // namespace mh
