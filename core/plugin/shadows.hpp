#pragma once
/// Plugins whose offers have the names of others, which are left alone: the names mean them.

#include "megahost/host.hpp"

#include <string>
#include <vector>

namespace mh {

struct Shadow {
  const FoundPlugin* plugin;
  const FoundPlugin::Offer* offer;
  const FoundPlugin* other; ///< plugin that has the name, too, and is not taken

  [[nodiscard]] std::string other_name() const; ///< "org.megahost.adamw/adamw"

  /// "the optimizer "adamw" is org.example.lion/adamw (lion.so), which shadows the built-in ...".
  [[nodiscard]] std::string sentence() const;
};

/// The shadows of built-ins among `all`, which outlives the result. Built-ins are the plugins in
/// `built_in_folder()`.
[[nodiscard]] std::vector<Shadow> shadows(const std::vector<FoundPlugin>& all);

/// A sentence for each file of the search path that an open plugin shadows: one of --plugin or of
/// the recipe comes before what is installed. Such files are opened in child processes.
[[nodiscard]] std::vector<std::string> open_shadows(Host& host);

} // namespace mh
