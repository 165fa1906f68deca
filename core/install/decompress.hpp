#pragma once
/// Compressed files, read through megahost-unpack: a process of its own decompresses next to the
/// work on what it has made.

#include "core/storage/input.hpp"

#include <filesystem>

namespace mh {

/// The program that reads archives and compressed files: next to the library or program that this
/// function is in.
[[nodiscard]] std::filesystem::path unpacker();

/// A file as it is, or decompressed if its name says that it is compressed (.gz, .zst, .xz, .bz2);
/// shards of MDS (.mds) as JSON lines.
///
/// Throws:  StorageError; `read` throws mh::Error (exit code 5) for a file that is cut or damaged
[[nodiscard]] std::unique_ptr<InputStream> open_input(const std::string& path);

} // namespace mh
