#pragma once
/// Files of vocabularies.

#include <string>

namespace mh::text {

/// The whole of a file that a recipe names.
///
/// Throws:  mh::Error (exit code 5) naming the key of the recipe and the file, if it cannot be read
///          or has more than 256 MiB
[[nodiscard]] std::string read_vocabulary_file(const std::string& key, const std::string& path);

} // namespace mh::text
