#include "core/plan/recorder.hpp"

#include "core/kernels/workspace.hpp"
#include "core/plan/operators.hpp"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

namespace mh {

namespace {

using EventKind = PlanEvent::Kind;

thread_local PlanRecorder* current = nullptr;

} // namespace

struct PlanRecorder::Frame {
  const Operator* op = nullptr;
  bool backward = false;  // part of a backward pass; what is recomputed in it is forward
  bool inner = false;     // what runs inside it is not counted
  bool has_inner = false; // something that counts ran inside it
  size_t event = 0;       // how many there are with its own; 0: it has none yet
  int64_t lent = 0;       // memory that its kernel takes
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  double input_bytes = 0;
  std::array<const void*, 4> storages{}; // storages of its first inputs
};

PlanRecorder::PlanRecorder(std::optional<at::DeviceType> target)
    : workspaces_(target == at::kCPU)
    , gpu_(target == at::kCUDA) {
  frames_.reserve(64);
  current = this;
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&enter, &leave)
          .needsInputs(true)
          .needsOutputs(true)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE})
  );
}

PlanRecorder::~PlanRecorder() {
  at::removeCallback(handle_);
  current = nullptr;
}

std::unique_ptr<at::ObserverContext> PlanRecorder::enter(const at::RecordFunction& function) {
  if (current != nullptr) {
    current->begin(function);
  }
  return nullptr;
}

void PlanRecorder::leave(const at::RecordFunction& function, at::ObserverContext*) {
  if (current != nullptr) {
    current->end(function);
  }
}

void PlanRecorder::begin(const at::RecordFunction& function) {
  const bool muted = !frames_.empty() && frames_.back().inner;
  const bool backward = !frames_.empty() && frames_.back().backward;
  Frame& frame = frames_.emplace_back();
  frame.inner = muted;
  frame.backward = backward;
  const char* name = function.name();
  if (std::string_view(name).starts_with("autograd::")) {
    frame.backward = std::string_view(name).find("Recompute") == std::string_view::npos;
  }
  if (function.scope() == at::RecordScope::USER_SCOPE) {
    static constexpr Operator kScope{WorkKind::nothing};
    frame.op = &kScope;
    scopes_.push_back({name, events_.size()});
    return;
  }
  frame.op = &operator_of(name);
  if (muted || frame.op->what == WorkKind::nothing) {
    return;
  }
  const Inputs inputs = function.inputs();
  const auto add = [&](PlanEvent event) {
    event.name = name;
    events_.push_back(event);
    frame.inner = true;
    frame.event = events_.size();
    if (event.kind != EventKind::memory) {
      made_.clear();
    }
  };
  switch (frame.op->what) {
  case WorkKind::mm:
    add(product_event(inputs[0].toTensor(), inputs[1].toTensor()));
    return;
  case WorkKind::addmm:
    add(product_event(inputs[1].toTensor(), inputs[2].toTensor()));
    return;
  case WorkKind::factors:
    add(factors_event(name, inputs[0].toTensor()));
    return;
  case WorkKind::attention:
    add(attention_event(name, inputs));
    return;
  case WorkKind::own:
    add(own_event(name, frame.op->cost, inputs));
    take_storages(frame, inputs);
    if (workspaces_) {
      frame.lent = ops::cpu_workspace(name, inputs);
      memory_.lend(frame.lent);
    }
    return;
  case WorkKind::nothing:
  case WorkKind::writes:
  case WorkKind::updates:
  case WorkKind::other:
    break;
  }
  frame.input_bytes = memory_of(inputs);
  take_storages(frame, inputs);
}

void PlanRecorder::take_storages(Frame& frame, Inputs inputs) {
  size_t count = 0;
  for (const auto& value : inputs) {
    if (value.isTensor() && value.toTensor().defined() && count < frame.storages.size()) {
      frame.storages.at(count++) = value.toTensor().storage().unsafeGetStorageImpl();
    }
  }
}

/// Results of element-wise operations wait in `made_` for the one that reads them. Forward only:
/// gradients have more than one reader.
void PlanRecorder::chain(const Frame& frame, PlanEvent& event, const at::RecordFunction& function) {
  for (auto made = made_.begin(); made != made_.end();) {
    const bool read = std::find(frame.storages.begin(), frame.storages.end(), made->first) !=
                      frame.storages.end();
    if (read && frame.op->element_wise && !frame.backward) {
      event.chained += 2 * made->second;
    }
    made = read ? made_.erase(made) : std::next(made);
  }
  if (!frame.op->element_wise || frame.backward) {
    return;
  }
  for (const auto& value : function.outputs()) {
    for_tensors(value, [&](const at::Tensor& tensor) {
      made_.emplace_back(tensor.storage().unsafeGetStorageImpl(), memory_of(tensor));
    });
  }
}

void PlanRecorder::end(const at::RecordFunction& function) {
  const Frame frame = frames_.back();
  frames_.pop_back();
  memory_.lend(-frame.lent);
  const bool counts = frame.op->what != WorkKind::nothing;
  const bool outer = frames_.empty() || !frames_.back().inner;
  if (!frames_.empty() && counts) {
    frames_.back().has_inner = true;
  }
  const auto seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - frame.start).count();
  if (frame.event > 0) {
    events_[frame.event - 1].seconds = seconds;
    chain(frame, events_[frame.event - 1], function);
  }
  if (frame.inner || frame.has_inner || !counts || !outer) {
    return;
  }
  PlanEvent event{.kind = EventKind::memory, .name = function.name(), .bytes = frame.input_bytes};
  double outputs = 0, fresh = 0; // fresh: no view of an input
  for (const auto& value : function.outputs()) {
    for_tensors(value, [&](const at::Tensor& tensor) {
      const void* storage = tensor.storage().unsafeGetStorageImpl();
      const bool view =
          std::find(frame.storages.begin(), frame.storages.end(), storage) != frame.storages.end();
      outputs += memory_of(tensor);
      fresh += view ? 0 : memory_of(tensor);
      event.type = tensor.scalar_type();
    });
  }
  if (frame.op->what == WorkKind::other && fresh == 0) {
    return; // a view
  }
  event.bytes += frame.op->what == WorkKind::other     ? fresh
                 : frame.op->what == WorkKind::updates ? outputs
                                                       : 0;
  event.seconds = seconds;
  chain(frame, event, function);
  events_.push_back(event);
}

int64_t PlanRecorder::began(
    const SilentGroup& group, const char* name, const at::Tensor& input, int64_t peer
) {
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
  // A tensor that a graph holds too, as the memory that cross attention reads, stays the graph's: a
  // backward pass gives it back, which begins after the send is over.
  if (std::string_view(name) == "send" && input.is_meta() && input.storage().use_count() == 1) {
    collective.handed_over = MetaMemory::hand_over(input);
  }
  const size_t number = collectives_.size();
  events_.push_back(
      {.kind = EventKind::start,
       .type = collective.type,
       .name = name,
       .backward = !frames_.empty() && frames_.back().backward,
       .collective = number}
  );
  collectives_.push_back(std::move(collective));
  return static_cast<int64_t>(number);
}

void PlanRecorder::waited(int64_t number) {
  const auto index = static_cast<size_t>(number);
  events_.push_back({.kind = EventKind::wait, .name = collectives_[index].name, .collective = index}
  );
}

} // namespace mh
