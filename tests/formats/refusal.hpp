#pragma once
/// The sentence with which an action refuses its input.

#include "megahost/error.hpp"

#include <functional>
#include <string>

namespace mh::test {

/// What the action's mh::Error says; "" if it throws nothing. Anything else that it throws passes
/// through.
inline std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

} // namespace mh::test
