#pragma once
/// Gradients of weights that a schedule may put off.

#include "megahost/context.hpp"

#include <functional>
#include <utility>

namespace mh {

/// Adds a weight's gradient: at once, or when the schedule empties the queue.
inline void now_or_later(WeightQueue* queue, std::function<void()> add) {
  if (queue == nullptr) {
    add();
  } else {
    queue->push_back(std::move(add));
  }
}

} // namespace mh
