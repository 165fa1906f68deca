#include "core/step/model_parts.hpp"

#include <ATen/SequenceNumber.h>

#include <string_view>
#include <utility>

namespace mh {
namespace {

constexpr std::string_view kEngine = "autograd::engine"; // around each backward node

} // namespace

std::string operation_name(std::string name) {
  constexpr std::string_view kNode = "torch::autograd::CppNode<";
  if (name.starts_with(kEngine)) {
    return std::string(kEngine);
  }
  if (name.starts_with(kNode) && name.ends_with('>')) {
    name = name.substr(kNode.size(), name.size() - kNode.size() - 1);
    return name.substr(name.rfind(':') + 1);
  }
  return name;
}

PartTracker::Place PartTracker::begin(const at::RecordFunction& function) {
  auto& thread = threads_[at::RecordFunction::currentThreadId()];
  Place place;
  if (!thread.open.empty()) {
    place.part = thread.open.back().part;
    place.backward = thread.open.back().backward;
  }
  if (function.scope() == at::RecordScope::USER_SCOPE) {
    place.scope = true;
    place.part += (place.part.empty() ? "" : "/") + operation_name(function.name());
    thread.parts[at::sequence_number::peek()] = place.part;
  } else if (function.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    place.part = part_of_node(function);
    place.backward = true;
  } else if (std::string_view(function.name()).starts_with(kEngine)) {
    place.backward = true;
  }
  thread.open.push_back(place);
  return place;
}

bool PartTracker::end() {
  auto& thread = threads_[at::RecordFunction::currentThreadId()];
  if (thread.open.empty()) {
    return false;
  }
  const bool scope = thread.open.back().scope;
  thread.open.pop_back();
  if (scope) {
    thread.parts[at::sequence_number::peek()] = thread.open.empty() ? "" : thread.open.back().part;
  }
  return true;
}

std::string PartTracker::part_of_node(const at::RecordFunction& function) const {
  const auto thread = threads_.find(function.forwardThreadId());
  if (thread == threads_.end() || function.seqNr() < 0) {
    return "";
  }
  const auto& parts = thread->second.parts;
  const auto next = parts.upper_bound(static_cast<uint64_t>(function.seqNr()));
  return next == parts.begin() ? "" : std::prev(next)->second;
}

} // namespace mh
