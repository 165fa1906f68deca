#pragma once
/// A source plugin, built with this machine's compiler for this megahost.

#include <filesystem>
#include <string>
#include <vector>

namespace mh {

struct BuiltPlugin {
  std::string name;                             ///< its meson project's
  std::vector<std::filesystem::path> libraries; ///< the plugins among what it installs
};

/// Builds the meson project `sources` in the folder `work`: what it would install, and no tests.
/// The output of meson, ninja and the compiler goes to `log`. Runs the commands of the project's
/// meson.build.
///
/// Throws:  mh::Error if a tool is missing, it does not build (with the end of the log), or it
///          installs no plugin
[[nodiscard]] BuiltPlugin build_plugin(
    const std::filesystem::path& sources,
    const std::filesystem::path& work,
    const std::filesystem::path& log
);

} // namespace mh
