#pragma once
/// The format of a folder with weights.

#include "megahost/checkpoint_format.hpp"
#include "megahost/host.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mh {

struct FolderFormat {
  std::string name;                 ///< "huggingface"
  std::shared_ptr<Storage> storage; ///< the folder alone; outlives the format and its readers
  std::unique_ptr<CheckpointFormat> format;
  bool writes = true; ///< runs may save in it
};

/// The format that knows a folder by the names in it; nothing if none does. One that runs save in comes
/// before those that are only read: a run that began with another program's weights may save next to
/// them.
///
/// Throws:  mh::Error if several do, with the option that says which
[[nodiscard]] std::optional<FolderFormat> find_format(const Path& folder, Host& host);

/// The text of the config.json by which a format that knows a folder describes its model; nothing
/// if none does.
[[nodiscard]] std::optional<std::string> config_of(const Path& folder, Host& host);

/// The format of a folder that is to be read: `named`, or if that is empty the one that knows it.
///
/// Throws:  mh::Error (exit code 5) with what each format looks for: there is no such folder, no
///          format knows it, or the named one does not
[[nodiscard]] FolderFormat format_of(const Path& folder, Host& host, const std::string& named = "");

/// The folder of a run's checkpoints if it lies outside the run's folder; empty if none is known.
[[nodiscard]] std::string checkpoints_apart(const Path& folder);

/// The steps that a folder in a format holds (CheckpointFormat::steps); an error of the format
/// names its plugin.
[[nodiscard]] std::optional<std::vector<int64_t>>
steps_of(const CheckpointFormat& format, const Path& folder);

} // namespace mh
