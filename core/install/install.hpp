#pragma once
/// Plugins in the user's folder: built, checked, put there whole, built again after an upgrade,
/// taken away.
///
/// Plugins that are installed together are one record (core/plugin/installed.hpp). Everything is
/// made in a folder of its own in `install_folder` first. Then names are given: the sources, the
/// record, the libraries. A failure before that leaves things as they were; the remains of a crash
/// are removed by the next command, or built again from the record.
///
/// Processes: one at a time, held by a lock

#include "core/plugin/installed.hpp"

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace mh {

struct InstallSteps {
  /// Called before each long step, with what it is.
  std::function<void(const std::string&)> say;
  /// Throws where a plugin is not sound; `sets` are options for its tests.
  std::function<void(const std::filesystem::path& library, const std::vector<std::string>& sets)>
      check;
};

/// The result of an installation, for messages.
struct InstallDone {
  Installed plugin;
  std::vector<std::string> offers; ///< "optimizer lion"
  std::string replaced;            ///< version that was there before; empty if none was
};

struct InstallArgs {
  std::filesystem::path given; ///< a plugin's folder, an archive of one, or a built .so
  bool checked = true;
  std::vector<std::string> sets{};
};

/// Throws:  mh::Error
[[nodiscard]] InstallDone install_plugin(const InstallArgs& args, const InstallSteps& steps);

/// Whether all of its files are there, for this LibTorch and SDK.
[[nodiscard]] bool is_current(const Installed& plugin);

/// Builds it again from the sources that were kept.
///
/// Throws:  mh::Error; what was there before stays
[[nodiscard]] InstallDone rebuild_plugin(const Installed& plugin, const InstallSteps& steps);

/// Removes the libraries, the record and the sources.
///
/// name:    the record's, one of its files' or of its ids
/// Throws:  mh::Error if none is installed under it
[[nodiscard]] Installed remove_plugin(const std::string& name);

/// The record of that name, file or id.
///
/// Throws:  mh::Error with the nearest one
[[nodiscard]] Installed installed_as(const std::string& name);

} // namespace mh
