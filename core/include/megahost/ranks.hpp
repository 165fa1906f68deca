#pragma once
/// Ranks that decide together: what one of them finds out, all do.

#include "megahost/export.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace mh {

class Group;

/// The ranks that take part, and a way to show one another a text. Alone by default.
struct Ranks {
  int64_t rank = 0;
  /// Each rank's text, at every rank.
  std::function<std::vector<std::string>(const std::string&)> gather = [](const std::string& text) {
    return std::vector{text};
  };
  const Group* group = nullptr; ///< they send tensors through; null: they cannot
};

/// Runs an action on every rank and gives each rank's text to all; if it fails on one, the first
/// such failure is thrown on all.
MH_API std::vector<std::string>
together(const Ranks& ranks, const std::function<std::string()>& action);

/// Runs an action on rank 0 only and gives its text to all, or its failure.
MH_API std::string on_first(const Ranks& ranks, const std::function<std::string()>& action);

} // namespace mh
