#pragma once
/// The files of a text corpus: found in an order that is the same on every machine, and read.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mh::text {

struct TextFile {
  std::string path;   ///< to open it
  std::string name;   ///< below the path that the recipe gave: the same on every machine
  uint64_t bytes = 0; ///< size by the file system
};

/// Ends of the names of files of text and source code.
[[nodiscard]] std::vector<std::string> usual_extensions();

/// Files and the contents of folders, in the order of `paths`, a folder's in byte-wise order of
/// names.
///
/// A file is taken whatever it is called; from a folder only names that end in one of `extensions`
/// (all if the list is empty), and nothing that begins with a dot. Nothing is taken twice, under
/// two names neither.
/// "@torch-headers" stands for the C++ headers of the LibTorch that this program runs on.
///
/// Throws:  mh::Error (exit code 5) for a path that does not exist or cannot be listed, or if there
/// is no file
[[nodiscard]] std::vector<TextFile>
find_text_files(const std::vector<std::string>& paths, const std::vector<std::string>& extensions);

/// The bytes of a file, or so many of its first.
///
/// Throws:  mh::Error (exit code 5) with the system's reason
[[nodiscard]] std::string
read_text_file(const std::string& path, std::optional<uint64_t> first = std::nullopt);

/// The include folder next to the library folder that LibTorch was loaded from.
///
/// Throws:  mh::Error (exit code 5) if LibTorch is not loaded or came without headers
[[nodiscard]] std::string torch_headers();

} // namespace mh::text
