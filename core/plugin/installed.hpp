#pragma once
/// The plugins that `megahost plugins install` has put into the user's folder.
///
///     ~/.local/share/megahost/
///       plugins-1/optimizers-lion.so     what recipes open
///       installed/lion.json              its record, written last
///       installed/lion-4k2c9h/           its sources, built again after an upgrade
///       installed/lion.log               the last build

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace mh {

struct Installed {
  struct File {
    std::string name; ///< "optimizers-lion.so"
    std::string id, version;
  };

  std::string name;    ///< "lion": its meson project's, or its file's without ".so"
  std::string from;    ///< the folder, archive or file that was given, absolute
  std::string sources; ///< name of the folder of its sources; empty if a built file was given
  std::string abi_tag; ///< build that it was made for
  std::vector<File> files;
  bool checked = true;           ///< by `plugins check`
  std::vector<std::string> sets; ///< options for it, "data.paths=[\"a.txt\"]"
};

/// Folder of the records.
///
/// Throws:  mh::Error if there is neither HOME nor XDG_DATA_HOME
[[nodiscard]] std::filesystem::path install_folder();

/// The user's folder of plugins for this SDK, `plugins-API`.
[[nodiscard]] std::filesystem::path user_plugin_folder();

/// Every record, by name.
///
/// Throws:  mh::Error, exit code 5, naming a record that cannot be read
[[nodiscard]] std::vector<Installed> installed_plugins();

/// The text of a record.
[[nodiscard]] std::string record_text(const Installed& plugin);

/// Advice about a plugin that was built for another LibTorch or SDK.
[[nodiscard]] std::string how_to_rebuild(const std::filesystem::path& file);

} // namespace mh
