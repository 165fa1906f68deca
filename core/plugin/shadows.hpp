#pragma once
/// Plugins from elsewhere that have the name of a built-in: the name then means them.

#include "megahost/host.hpp"

#include <string>
#include <vector>

namespace mh {

struct Shadow {
  const FoundPlugin* plugin;
  const FoundPlugin::Offer* offer;
  std::string built_in; ///< full name

  /// "the optimizer "adamw" is org.example.lion/adamw (lion.so), which shadows the built-in ...".
  [[nodiscard]] std::string sentence() const;
};

/// Those among `all`, which outlives the result. Built-ins are what lies in `built_in_folder()`.
[[nodiscard]] std::vector<Shadow> shadows(const std::vector<FoundPlugin>& all);

/// A sentence for each that is open. Built-ins are opened in child processes where it matters.
[[nodiscard]] std::vector<std::string> open_shadows(Host& host);

} // namespace mh
