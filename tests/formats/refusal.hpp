#pragma once
/// The sentence with which an action refuses its input.

#include "megahost/error.hpp"

#include <functional>
#include <string>

namespace mh::test {

/// The text of the action's mh::Error; "" if it throws nothing. Any other exception passes through.
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
