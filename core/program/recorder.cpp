#include "core/program/recorder.hpp"

#include "core/kernels/ops.hpp"
#include "core/kernels/registration.hpp"
#include "core/program/experts.hpp"
#include "core/program/simpler_forms.hpp"
#include "megahost/error.hpp"

#include <ATen/ops/_to_copy.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace mh::program {

using at::Tensor;
using torch::jit::Stack;

/// Between Functionalize and the backends; LibTorch itself has no fallback there.
constexpr auto kKey = c10::DispatchKey::Fake;

namespace {

thread_local GraphRecorder* t_recorder = nullptr;

/// Calls `f` for each tensor of a value: one, a list, or a list with gaps.
void for_each_tensor(const c10::IValue& value, const std::function<void(const Tensor&)>& f) {
  if (value.isTensor()) {
    f(value.toTensor());
  } else if (value.isTensorList()) {
    for (const Tensor& tensor : value.toTensorVector()) {
      f(tensor);
    }
  } else if (value.isList()) {
    for (const c10::IValue& one : value.toListRef()) {
      if (one.isTensor() || one.isNone()) {
        f(one.isTensor() ? one.toTensor() : Tensor());
      }
    }
  }
}

bool has_meta(at::ArrayRef<c10::IValue> values) {
  bool found = false;
  for (const auto& value : values) {
    for_each_tensor(value, [&](const Tensor& tensor) {
      found = found || (tensor.defined() && tensor.is_meta());
    });
  }
  return found;
}

/// Whether the caller is outside of functionalization, and gets tensors whose writes are followed.
bool is_outside() {
  return !c10::impl::tls_local_dispatch_key_set().excluded_.has(c10::DispatchKey::Functionalize);
}

/// An operator of ours by its plain form, which is made of LibTorch's.
void call_plain_form(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  op.callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd, *stack);
}

/// A conversion whose result's writes are followed, too: LibTorch's own form ends functionalization
/// here on devices other than its lazy ones.
Tensor converted(
    const Tensor& x,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> layout,
    std::optional<at::Device> device,
    std::optional<bool> pinned,
    bool non_blocking,
    std::optional<at::MemoryFormat> format
) {
  using namespace at::functionalization;
  Tensor inner = x;
  if (impl::isFunctionalTensor(x)) {
    impl::sync(x);
    inner = impl::from_functional_tensor(x);
  }
  Tensor result;
  {
    const at::AutoDispatchSkipFunctionalize below;
    result = at::_to_copy(inner, dtype, layout, device, pinned, non_blocking, format);
  }
  return result.is_meta() ? impl::to_functional_tensor(result) : result;
}

} // namespace

Tensor recorded_dropout(
    const Tensor& x,
    double p,
    int64_t key,
    const Tensor& samples,
    const Tensor& tokens,
    int64_t first_feature
) {
  MH_ASSERT(
      t_recorder != nullptr && t_recorder->make_dropout_,
      "dropout is recorded where its numbers are inputs"
  );
  if (!t_recorder->dropout_) {
    t_recorder->dropout_ = t_recorder->make_dropout_();
  }
  return dropout_form(x, p, key, samples, tokens, first_feature, *t_recorder->dropout_);
}

namespace {

/// Registering a form in the place of another warns.
class Unheard : public c10::WarningHandler {
public:
  void process(const c10::Warning&) override {}
};

torch::Library& forms_at(const char* name, c10::DispatchKey key) {
  return ops::lasting_library(torch::Library::IMPL, name, key);
}

} // namespace

void record(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  if (t_recorder != nullptr) {
    t_recorder->call(op, keys, *stack);
  } else {
    const c10::impl::ExcludeDispatchKeyGuard below(kKey);
    op.callBoxed(stack);
  }
}

namespace {

/// Operators of ours whose plain forms are the host's work: programs have others.
constexpr std::string_view kOwnForms[] = {
    "megahost::dropout",
    "megahost::expert_slots",
    "megahost::grouped_gradient_",
    "megahost::grouped_product"};

void register_once() {
  static std::once_flag once;
  std::call_once(once, [] {
    ops::ensure_registered();
    forms_at("_", kKey).fallback(torch::CppFunction::makeFromBoxedFunction<&record>());
    Unheard unheard;
    const c10::WarningUtils::WarningHandlerGuard quiet(&unheard);
    forms_at("aten", c10::DispatchKey::Functionalize).impl("_to_copy", converted);
    torch::Library& ours = forms_at("megahost", c10::DispatchKey::Functionalize);
    ours.impl("dropout", recorded_dropout);
    ours.impl("expert_slots", slots_form);
    ours.impl("grouped_product", product_form);
    ours.impl("grouped_gradient_", gradient_form);
    for (const auto& op : c10::Dispatcher::singleton().getAllOpNames()) {
      constexpr std::string_view kOurs = "megahost::";
      if (op.name.starts_with(kOurs) &&
          std::ranges::find(kOwnForms, op.name) == std::end(kOwnForms)) {
        ours.impl(
            op.name.substr(kOurs.size()).c_str(),
            torch::CppFunction::makeFromBoxedFunction<&call_plain_form>()
        );
      }
    }
  });
}

c10::DispatchKeySet registered_key() {
  register_once();
  return c10::DispatchKeySet(kKey);
}

} // namespace

GraphRecorder::GraphRecorder()
    : include_(registered_key())
    , views_(true) {
  MH_ASSERT(t_recorder == nullptr, "a thread records once at a time");
  t_recorder = this;
}

GraphRecorder::~GraphRecorder() {
  t_recorder = nullptr;
}

Tensor GraphRecorder::input(at::IntArrayRef sizes, at::ScalarType dtype) {
  Tensor inner;
  {
    const c10::impl::ExcludeDispatchKeyGuard below(kKey);
    inner = at::empty(sizes, at::TensorOptions(at::kMeta).dtype(dtype));
  }
  graph_.inputs.push_back(new_value(inner));
  return at::functionalization::impl::to_functional_tensor(inner);
}

int64_t GraphRecorder::value_of(const Tensor& tensor) {
  using namespace at::functionalization;
  if (!impl::isFunctionalTensor(tensor)) {
    return known_value(tensor);
  }
  impl::sync(tensor);
  return known_value(impl::from_functional_tensor(tensor));
}

int64_t GraphRecorder::new_value(const Tensor& tensor) {
  const auto number = static_cast<int64_t>(graph_.values.size());
  graph_.values.push_back({tensor.scalar_type(), tensor.sizes().vec()});
  numbers_[tensor.unsafeGetTensorImpl()] = number;
  alive_.push_back(tensor);
  return number;
}

int64_t GraphRecorder::known_value(const Tensor& tensor) {
  const auto found = numbers_.find(tensor.unsafeGetTensorImpl());
  if (found != numbers_.end()) {
    return found->second;
  }
  const int64_t number = new_value(tensor);
  if (!tensor.is_meta()) {
    graph_.nodes.push_back({.op = "", .outputs = {number}, .constant = tensor.clone()});
  }
  return number;
}

namespace {

/// Operators whose first argument says a shape only: what it held is not read.
constexpr std::string_view kOfShapeAlone[] = {
    "aten::copy",
    "aten::empty_like",
    "aten::fill.Scalar",
    "aten::fill.Tensor",
    "aten::full_like",
    "aten::new_empty",
    "aten::new_empty_strided",
    "aten::new_zeros",
    "aten::ones_like",
    "aten::zero",
    "aten::zeros_like"};

} // namespace

void GraphRecorder::call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack& stack) {
  const auto& schema = op.schema();
  const size_t arguments = schema.arguments().size(), results = schema.returns().size();
  Node node{
      .op = schema.name() + (schema.overload_name().empty() ? "" : "." + schema.overload_name())};
  const bool outside = is_outside();
  const bool reads_meta = has_meta(torch::jit::last(stack, arguments));
  if (reads_meta) {
    if (const SimplerForm form = simpler_form(node.op)) {
      form(stack);
      return;
    }
  }
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
    op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, stack);
    return;
  }
  std::vector<std::vector<Tensor>> tensors;
  for (const auto& argument : torch::jit::last(stack, arguments)) {
    auto& list = tensors.emplace_back();
    for_each_tensor(argument, [&](const Tensor& tensor) { list.push_back(tensor); });
    node.arguments.push_back(list.empty() ? argument : c10::IValue());
  }
  {
    const c10::impl::ExcludeDispatchKeyGuard below(kKey);
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), &stack);
  }
  if (!reads_meta && !has_meta(torch::jit::last(stack, results))) {
    return; // the host's own work
  }
  for (const auto& list : tensors) {
    auto& values = node.inputs.emplace_back();
    for (const Tensor& tensor : list) {
      values.push_back(tensor.defined() ? known_value(tensor) : -1);
    }
  }
  if (std::ranges::find(kOfShapeAlone, node.op) != std::end(kOfShapeAlone)) {
    node.inputs.front() = {-1};
  }
  for (auto& result : torch::jit::last(stack, results)) {
    for_each_tensor(result, [&](const Tensor& tensor) {
      node.outputs.push_back(tensor.defined() ? new_value(tensor) : -1);
    });
  }
  graph_.nodes.push_back(std::move(node));
  if (!outside) {
    return;
  }
  // A factory, or a copy from the host: the caller gets a tensor whose writes are followed.
  for (size_t i = stack.size() - results; i < stack.size(); ++i) {
    if (stack[i].isTensor() && stack[i].toTensor().defined() && stack[i].toTensor().is_meta() &&
        !at::functionalization::impl::isFunctionalTensor(stack[i].toTensor())) {
      stack[i] = at::functionalization::impl::to_functional_tensor(stack[i].toTensor());
    }
  }
}

} // namespace mh::program
