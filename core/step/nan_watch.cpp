#include "core/step/nan_watch.hpp"

#include "core/step/model_parts.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

namespace mh {
namespace {

/// Infinities that these make are meant.
bool makes_masks(std::string_view name) {
  static constexpr std::array<std::string_view, 5> kNames{
      "aten::masked_fill", "aten::fill_", "aten::full", "aten::where", "aten::scalar_tensor"};
  return std::any_of(kNames.begin(), kNames.end(), [&](auto known) {
    return name.starts_with(known);
  });
}

bool makes_garbage(std::string_view name) {
  return name.starts_with("aten::empty") || name.starts_with("aten::new_empty");
}

bool is_finite(const at::Tensor& x) {
  if (!x.defined() || !x.is_floating_point() || x.is_meta() || x.numel() == 0) {
    return true;
  }
  const at::Tensor wide = x.element_size() == 1 ? x.to(at::kFloat) : x;
  return at::isfinite(wide).all().item<bool>();
}

void tensors_of(const c10::IValue& value, std::vector<at::Tensor>& tensors) {
  if (value.isTensor()) {
    tensors.push_back(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      tensors.push_back(tensor);
    }
  }
}

/// The tensors that an operation read and those that it writes into.
struct Operation : at::ObserverContext {
  PartTracker::Place place;
  bool looked = false; // it is an operation whose results count
  bool sound_inputs = true;
  std::vector<at::Tensor> written;
};

void look_at_inputs(const at::RecordFunction& function, Operation& operation) {
  const auto schema = function.operator_schema();
  const auto inputs = function.inputs();
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::vector<at::Tensor> tensors;
    tensors_of(inputs[i], tensors);
    const auto* argument =
        schema && i < schema->arguments().size() ? &schema->arguments()[i] : nullptr;
    const bool writes = argument != nullptr && argument->alias_info() != nullptr &&
                        argument->alias_info()->isWrite();
    if (writes) {
      operation.written.insert(operation.written.end(), tensors.begin(), tensors.end());
    }
    if (!(writes && argument->is_out())) {
      operation.sound_inputs =
          operation.sound_inputs && std::all_of(tensors.begin(), tensors.end(), is_finite);
    }
  }
}

} // namespace

class NanWatch::Recorder {
public:
  Recorder() {
    const std::lock_guard lock(mutex_);
    active_ = this;
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback(&started, &ended)
                                        .needsInputs(true)
                                        .needsOutputs(true)
                                        .scopes(
                                            {at::RecordScope::FUNCTION,
                                             at::RecordScope::BACKWARD_FUNCTION,
                                             at::RecordScope::USER_SCOPE}
                                        ));
  }

  ~Recorder() {
    at::removeCallback(handle_);
    const std::lock_guard lock(mutex_);
    active_ = nullptr;
  }

  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  void microbatch(int64_t number) {
    const std::lock_guard lock(mutex_);
    microbatch_ = number;
  }

  void clear() {
    const std::lock_guard lock(mutex_);
    finding_.clear();
    parts_.clear();
  }

  [[nodiscard]] std::string finding() const {
    const std::lock_guard lock(mutex_);
    return finding_;
  }

private:
  // Callbacks may end after the watch that they began under: they ask whether one is still there.
  static inline std::mutex mutex_;
  static inline Recorder* active_ = nullptr;

  static std::unique_ptr<at::ObserverContext> started(const at::RecordFunction& function) {
    const at::RecordFunctionGuard quiet(/*is_enabled=*/false);
    const at::NoGradGuard no_grad;
    auto operation = std::make_unique<Operation>();
    {
      const std::lock_guard lock(mutex_);
      if (active_ == nullptr) {
        return operation;
      }
      operation->place = active_->parts_.begin(function);
      operation->looked = active_->finding_.empty() &&
                          function.scope() == at::RecordScope::FUNCTION &&
                          !makes_masks(function.name());
    }
    if (operation->looked) {
      look_at_inputs(function, *operation);
    }
    return operation;
  }

  static void ended(const at::RecordFunction& function, at::ObserverContext* context) {
    const at::RecordFunctionGuard quiet(/*is_enabled=*/false);
    const at::NoGradGuard no_grad;
    auto& operation = *static_cast<Operation*>(context);
    bool bad = false;
    if (operation.looked && operation.sound_inputs) {
      auto made = std::move(operation.written);
      for (const auto& output : function.outputs()) {
        tensors_of(output, made);
      }
      if (makes_garbage(function.name())) {
        for (const auto& tensor : made) {
          tensor.zero_(); // so that what is read before it is written is no finding
        }
      } else {
        bad = !std::all_of(made.begin(), made.end(), is_finite);
      }
    }
    const std::lock_guard lock(mutex_);
    if (active_ == nullptr) {
      return;
    }
    (void)active_->parts_.end();
    if (bad && active_->finding_.empty()) {
      active_->find(operation_name(function.name()), operation.place);
    }
  }

  void find(const std::string& name, const PartTracker::Place& place) {
    finding_ =
        name + (place.part.empty() ? "" : " in " + place.part) +
        (place.part == "optimizer" ? ""
                                   : std::string(", ") + (place.backward ? "backward" : "forward") +
                                         " of microbatch " + std::to_string(microbatch_));
  }

  at::CallbackHandle handle_ = 0;
  PartTracker parts_;
  int64_t microbatch_ = 0;
  std::string finding_;
};

NanWatch::NanWatch()
    : recorder_(std::make_unique<Recorder>()) {}

NanWatch::~NanWatch() = default;

void NanWatch::microbatch(int64_t number) {
  recorder_->microbatch(number);
}

void NanWatch::clear() {
  recorder_->clear();
}

std::string NanWatch::finding() const {
  return recorder_->finding();
}

} // namespace mh
