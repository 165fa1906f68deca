#pragma once
/// Files of documents that are no plain text, read through programs: a process of its own reads and
/// decompresses next to the work on what it has made.

#include "core/storage/input.hpp"

#include <filesystem>
#include <string>
#include <vector>

namespace mh {

/// The program that reads archives and compressed files: next to the library or program that this
/// function is in.
[[nodiscard]] std::filesystem::path unpacker();

/// A file as it is, or decompressed if its name says that it is compressed (.gz, .zst, .xz, .bz2);
/// shards of MDS (.mds) as JSON lines; parquet and Arrow files too, with the named columns.
///
/// Throws:  StorageError; mh::Error (exit code 5) where the program that reads columns is not set
///          up; `read` throws mh::Error (exit code 5) for a file that is cut or damaged
[[nodiscard]] std::unique_ptr<InputStream>
open_input(const std::string& path, const std::vector<std::string>& columns);

} // namespace mh
