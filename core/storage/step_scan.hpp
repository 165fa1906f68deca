#pragma once
/// The folders of steps below a prefix (step_folder.hpp), also those that do not count.

#include "megahost/storage.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace mh {

/// What a folder is there for.
enum class StepUse : uint8_t {
  counts,    ///< it is its step's checkpoint
  replaced,  ///< a later folder of its step counts
  unfinished ///< without its manifest: being written or removed, or left so
};

struct FoundStep {
  int64_t step = 0;
  std::string name{}; ///< below the prefix
  StepUse use = StepUse::counts;
};

/// All folders of steps, newest first. `manifest` is the name of the object that commits one.
[[nodiscard]] std::vector<FoundStep>
find_steps(Storage& storage, const Path& root, const std::string& manifest);

} // namespace mh
