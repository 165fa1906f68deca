#pragma once
/// Small checkpoints for tests of the step folder: two files, and a manifest that vouches for them.

#include "core/formats/crc32c.hpp"
#include "core/storage/step_folder.hpp"

#include <string>

namespace mh::test {

inline std::string save_data(char file, int version) {
  std::string data(static_cast<size_t>(1500 + version), file);
  return data + std::to_string(version);
}

/// Saves version `version` under a step, or removes what it began and throws.
inline void save(Storage& storage, StepFolder& folder, int64_t step, int version) {
  try {
    const Path directory = folder.begin(step);
    std::string sums = std::to_string(version);
    for (const char file : {'a', 'b'}) {
      const std::string data = save_data(file, version);
      put_text(storage, directory / std::string(1, file), data, Storage::Existing::refuse);
      sums += " " + crc_text(crc32c(data));
    }
    folder.commit(step, sums);
  } catch (const Error&) {
    folder.abandon(step);
    throw;
  }
}

/// The version that a directory holds. Throws:  mh::Error if it is not whole
inline int read_save(Storage& storage, const Path& directory) {
  const std::string sums = get_text(storage, directory / "sums", 1000);
  const int version = std::atoi(sums.c_str());
  std::string expected = std::to_string(version);
  for (const char file : {'a', 'b'}) {
    const Path path = directory / std::string(1, file);
    const std::string data = get_text(storage, path, 10000);
    expected += " " + crc_text(crc32c(data));
    if (data != save_data(file, version)) {
      throw Error(path.string() + ": changed");
    }
  }
  if (sums != expected) {
    throw Error((directory / "sums").string() + ": changed");
  }
  return version;
}

inline StepFolder::Verify verify_in(Storage& storage) {
  return [&storage](const Path& directory) { (void)read_save(storage, directory); };
}

/// Removes all but the newest `count` steps and the newest that is whole; nothing if none is.
inline void keep_last(Storage& storage, StepFolder& folder, size_t count) {
  try {
    const auto steps = folder.steps();
    const auto whole = folder.newest(verify_in(storage));
    for (size_t i = count; i < steps.size(); ++i) {
      if (steps[i] != whole) {
        (void)folder.remove(steps[i]);
      }
    }
  } catch (const Error&) {
  }
}

} // namespace mh::test
