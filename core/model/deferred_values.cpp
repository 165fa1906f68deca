#include "core/model/deferred_values.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

namespace mh {

namespace {

thread_local DeferredValues* of_thread = nullptr;

} // namespace

DeferredValues::Scope::Scope(DeferredValues* own)
    : former_(std::exchange(of_thread, own)) {}

DeferredValues::Scope::~Scope() {
  of_thread = former_;
}

DeferredValues* DeferredValues::current() {
  return of_thread;
}

bool DeferredValues::make(Parameter& parameter, const at::Tensor& zeros) {
  const auto write = writes_.extract(parameter.pieces.front().name);
  if (write.empty()) {
    return false;
  }
  const at::NoGradGuard no_grad;
  write.mapped()(zeros);
  parameter.value.set_data(zeros);
  return true;
}

void DeferredValues::make_rest(ParameterStore& store) {
  for (auto& parameter : store.all()) {
    if (writes_.contains(parameter.pieces.front().name)) {
      const auto& value = parameter.value;
      (void)make(parameter, at::zeros(value.sizes(), value.options().requires_grad(false)));
    }
  }
}

} // namespace mh
