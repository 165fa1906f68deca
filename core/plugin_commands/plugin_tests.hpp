#pragma once
/// The tests of `megahost plugins check`, before a plugin is installed.

#include <filesystem>
#include <string>
#include <vector>

namespace mh {

/// Runs them and prints those that fail, or how many passed. `sets` are the values of --set.
///
/// Throws:  mh::Error if one fails
void check_before_install(const std::filesystem::path& file, const std::vector<std::string>& sets);

} // namespace mh
