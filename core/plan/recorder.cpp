#include "core/plan/recorder.hpp"

#include "core/kernels/cost.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace mh {

namespace {

using Kind = PlanEvent::Kind;
using Inputs = c10::ArrayRef<const c10::IValue>;

thread_local Recorder* current = nullptr;

/// How an operator's work is found.
enum class Class : uint8_t {
  nothing,   ///< makes room, or looks at it in another way
  mm,        ///< (a, b)
  addmm,     ///< (c, a, b)
  attention, ///< LibTorch's fused kernels
  own,       ///< ours: kernels/cost.hpp
  writes,    ///< in place, without reading what was there
  updates,   ///< in place
  other,     ///< reads its inputs, writes its outputs
};

struct Operator {
  Class what = Class::other;
  ops::CostFunction cost = nullptr;
};

bool one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Operator classify(std::string_view name) {
  if (const auto cost = ops::find_cost(name)) {
    return {Class::own, cost};
  }
  if (name.starts_with("autograd::")) { // a node of the graph, inside which operators run
    return {Class::nothing};
  }
  if (!name.starts_with("aten::")) {
    return {};
  }
  const std::string_view op = name.substr(6);
  if (one_of(op, {"mm", "bmm", "_scaled_mm"})) {
    return {Class::mm};
  }
  if (one_of(op, {"addmm", "addmm_", "baddbmm", "baddbmm_"})) {
    return {Class::addmm};
  }
  if (op.starts_with("_scaled_dot_product_") && op.find("_attention") != std::string_view::npos) {
    return {Class::attention};
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
    return {Class::nothing};
  }
  if (one_of(op, {"copy_", "zero_", "fill_", "normal_", "uniform_"})) {
    return {Class::writes};
  }
  return {op.ends_with("_") ? Class::updates : Class::other};
}

const Operator& operator_of(const char* name) {
  thread_local std::unordered_map<const void*, Operator> known; // names live as long as schemas
  const auto found = known.find(name);
  return found != known.end() ? found->second : known.emplace(name, classify(name)).first->second;
}

/// Memory behind a tensor that is read or written once; expanded tensors have less than they show.
double bytes_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) {
    return 0;
  }
  return static_cast<double>(std::min(tensor.nbytes(), tensor.storage().nbytes()));
}

template <class Use>
void for_tensors(const c10::IValue& value, const Use& use) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) {
      use(value.toTensor());
    }
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      use(tensor);
    }
  }
}

double bytes_of(Inputs inputs) {
  double sum = 0;
  for (const auto& value : inputs) {
    for_tensors(value, [&](const at::Tensor& tensor) { sum += bytes_of(tensor); });
  }
  return sum;
}

PlanEvent product(const at::Tensor& a, const at::Tensor& b) {
  PlanEvent event{.kind = Kind::product, .type = a.scalar_type()};
  event.batch = a.dim() == 3 ? a.size(0) : 1;
  event.m = a.size(-2);
  event.k = a.size(-1);
  event.n = b.size(-1);
  event.flops = 2.0 * static_cast<double>(event.batch) * static_cast<double>(event.m) *
                static_cast<double>(event.n) * static_cast<double>(event.k);
  const double result = static_cast<double>(event.batch * event.m * event.n);
  event.bytes = bytes_of(a) + bytes_of(b) + result * static_cast<double>(a.element_size());
  return event;
}

/// [batch, heads, seq, dim]; a backward pass has the output's gradient before them.
PlanEvent attention(std::string_view name, Inputs inputs) {
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
  const double pairs = static_cast<double>(q.size(2) * k.size(2)) * (causal ? 0.5 : 1.0);
  const double products = backward ? 5 : 2;
  PlanEvent event{.kind = Kind::attention, .type = q.scalar_type()};
  event.batch = q.size(0) * q.size(1);
  event.m = q.size(2);
  event.n = k.size(2);
  event.k = q.size(3);
  event.backward = backward;
  event.flops = products * 2 * pairs * static_cast<double>(event.batch * event.k);
  event.bytes = bytes_of(inputs) + bytes_of(q);
  return event;
}

PlanEvent own(std::string_view name, ops::CostFunction cost, Inputs inputs) {
  if (name == "megahost::gemm_") {
    return product(inputs[1].toTensor(), inputs[2].toTensor());
  }
  const auto [flops, bytes] = cost(inputs);
  PlanEvent event{.kind = Kind::memory, .flops = flops, .bytes = bytes};
  if (name.starts_with("megahost::attention")) {
    event.backward = name.ends_with("_backward");
    const auto& q = inputs[event.backward ? 1 : 0].toTensor(); // [queries, batch, heads, dim]
    event.kind = Kind::attention;
    event.type = q.scalar_type();
    event.batch = q.size(1) * q.size(2);
    event.m = q.size(0);
    event.n = inputs[event.backward ? 2 : 1].toTensor().size(0);
    event.k = q.size(3);
  } else if (name == "megahost::fp8_product") {
    event.kind = Kind::product;
    event.type = at::kFloat8_e4m3fn;
    event.m = event.n = event.k = 4096; // large: no shape is known to be bad
  }
  return event;
}

} // namespace

struct Recorder::Frame {
  const Operator* op = nullptr;
  bool inner = false;     // what runs inside it is not counted
  bool has_inner = false; // something that counts ran inside it
  double input_bytes = 0;
  std::array<const void*, 4> storages{}; // of its first inputs
};

Recorder::Recorder() {
  frames_.reserve(64);
  current = this;
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&enter, &leave)
          .needsInputs(true)
          .needsOutputs(true)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE})
  );
}

Recorder::~Recorder() {
  at::removeCallback(handle_);
  current = nullptr;
}

std::unique_ptr<at::ObserverContext> Recorder::enter(const at::RecordFunction& function) {
  if (current != nullptr) {
    current->begin(function);
  }
  return nullptr;
}

void Recorder::leave(const at::RecordFunction& function, at::ObserverContext*) {
  if (current != nullptr) {
    current->end(function);
  }
}

void Recorder::begin(const at::RecordFunction& function) {
  const bool muted = !frames_.empty() && frames_.back().inner;
  Frame& frame = frames_.emplace_back();
  frame.inner = muted;
  const char* name = function.name();
  if (function.scope() == at::RecordScope::USER_SCOPE) {
    static constexpr Operator kScope{Class::nothing};
    frame.op = &kScope;
    scopes_.push_back({name, events_.size()});
    return;
  }
  frame.op = &operator_of(name);
  if (muted || frame.op->what == Class::nothing) {
    return;
  }
  const Inputs inputs = function.inputs();
  const auto add = [&](PlanEvent event) {
    event.name = name;
    events_.push_back(event);
    frame.inner = true;
  };
  switch (frame.op->what) {
  case Class::mm:
    add(product(inputs[0].toTensor(), inputs[1].toTensor()));
    return;
  case Class::addmm:
    add(product(inputs[1].toTensor(), inputs[2].toTensor()));
    return;
  case Class::attention:
    add(attention(name, inputs));
    return;
  case Class::own:
    add(own(name, frame.op->cost, inputs));
    if (events_.back().kind == Kind::product &&
        inputs[0].toTensor().scalar_type() != events_.back().type) {
      const auto made = inputs[0].toTensor().numel() * inputs[1].toTensor().element_size();
      workspace_ = std::max(workspace_, static_cast<int64_t>(made));
    }
    return;
  case Class::nothing:
  case Class::writes:
  case Class::updates:
  case Class::other:
    break;
  }
  frame.input_bytes = bytes_of(inputs);
  size_t count = 0;
  for (const auto& value : inputs) {
    if (value.isTensor() && value.toTensor().defined() && count < frame.storages.size()) {
      frame.storages.at(count++) = value.toTensor().storage().unsafeGetStorageImpl();
    }
  }
}

void Recorder::end(const at::RecordFunction& function) {
  const Frame frame = frames_.back();
  frames_.pop_back();
  const bool counts = frame.op->what != Class::nothing;
  const bool outer = frames_.empty() || !frames_.back().inner;
  if (!frames_.empty() && counts) {
    frames_.back().has_inner = true;
  }
  if (frame.inner || frame.has_inner || !counts || !outer) {
    return;
  }
  PlanEvent event{.kind = Kind::memory, .name = function.name(), .bytes = frame.input_bytes};
  double outputs = 0, fresh = 0; // fresh: no view of an input
  for (const auto& value : function.outputs()) {
    for_tensors(value, [&](const at::Tensor& tensor) {
      const void* storage = tensor.storage().unsafeGetStorageImpl();
      const bool view =
          std::find(frame.storages.begin(), frame.storages.end(), storage) != frame.storages.end();
      outputs += bytes_of(tensor);
      fresh += view ? 0 : bytes_of(tensor);
      event.type = tensor.scalar_type();
    });
  }
  if (frame.op->what == Class::other && fresh == 0) {
    return; // a view
  }
  event.bytes += frame.op->what == Class::other     ? fresh
                 : frame.op->what == Class::updates ? outputs
                                                    : 0;
  events_.push_back(event);
}

int64_t
Recorder::began(const SilentGroup& group, const char* name, const at::Tensor& input, int64_t peer) {
  auto known = std::find_if(groups_.begin(), groups_.end(), [&](const auto& one) {
    return one->axis == group.axis && one->members == group.members;
  });
  if (known == groups_.end()) {
    known = groups_.insert(groups_.end(), std::make_shared<const SilentGroup>(group));
  }
  PlannedCollective collective{
      .name = name,
      .group = *known,
      .sizes = input.sizes().vec(),
      .type = input.scalar_type(),
      .bytes = static_cast<int64_t>(input.nbytes()),
      .peer = peer,
      .host = !input.is_meta()};
  if (std::string_view(name) == "send" && input.is_meta()) {
    collective.handed_over = MetaMemory::hand_over(input);
  }
  const size_t number = collectives_.size();
  events_.push_back(
      {.kind = Kind::start, .type = collective.type, .name = name, .collective = number}
  );
  collectives_.push_back(std::move(collective));
  return static_cast<int64_t>(number);
}

void Recorder::waited(int64_t number) {
  const auto index = static_cast<size_t>(number);
  events_.push_back({.kind = Kind::wait, .name = collectives_[index].name, .collective = index});
}

} // namespace mh
