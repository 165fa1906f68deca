#pragma once
/// The sources of a plugin, taken from a folder or an archive into a folder of their own.

#include <cstdint>
#include <filesystem>

namespace mh {

/// The most that the sources of a plugin may hold.
inline constexpr uint64_t kMostSourceBytes = 64 << 20, kMostSourceFiles = 10'000;

/// Copies a folder into a new one: no build folders, runs or hidden files; of links what they name.
///
/// Throws:  mh::Error if there is too much of it, or a link to a folder
void copy_sources(const std::filesystem::path& from, const std::filesystem::path& to);

/// Unpacks a .tar, compressed or not, or a .zip into a new folder, in a process of its own.
///
/// Throws:  mh::Error for what is no such archive, is damaged, holds too much, or anything but
///          files and folders under relative names; and StorageError
void unpack(const std::filesystem::path& archive, const std::filesystem::path& to);

/// The folder of the meson project: this one, or the only one in it.
///
/// Throws:  mh::Error, which calls it `given`
[[nodiscard]] std::filesystem::path
project_folder(const std::filesystem::path& folder, const std::filesystem::path& given);

} // namespace mh
