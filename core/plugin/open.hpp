#pragma once
/// One plugin, opened and checked; and the same in a child process.

#include "megahost/host.hpp"

#define BOOST_DLL_USE_STD_FS
#include <boost/dll/shared_library.hpp>

#include <filesystem>

namespace mh {

/// Checks that the running LibTorch is the one of the headers.
///
/// Throws:  mh::Error naming both and the file it was loaded from
void check_libtorch();

struct OpenedPlugin {
  boost::dll::shared_library library;
  bool flushes = false; ///< its static constructors had made this thread flush denormals to zero
  Registry registry;    ///< parts that it registered
  PluginInfo info;
};

/// Opens a plugin and lets it register.
///
/// Throws:  mh::Error, see plugin.hpp
[[nodiscard]] OpenedPlugin open_plugin(const std::filesystem::path& file);

/// The folder of built-in plugins: next to the installed library, or in the build tree.
[[nodiscard]] std::filesystem::path built_in_folder();

/// `open_plugin` in a child process: whatever the plugin does leaves this process alone.
[[nodiscard]] FoundPlugin probe_plugin(const std::filesystem::path& file);

} // namespace mh
