#pragma once
/// A variable that has another value for as long as an object lives.

#include <utility>

namespace mh {

template <class T>
class [[nodiscard]] ValueScope {
public:
  ValueScope(T& current, T value)
      : current_(current)
      , before_(std::exchange(current, std::move(value))) {}

  ~ValueScope() { current_ = std::move(before_); }

  ValueScope(const ValueScope&) = delete;
  ValueScope& operator=(const ValueScope&) = delete;

private:
  T& current_;
  T before_;
};

} // namespace mh
