#include "core/foreign/iteration_format.hpp"

#include <algorithm>
#include <charconv>

namespace mh {

std::string iteration_name(int64_t step) {
  const std::string digits = std::to_string(step);
  return "iter_" + std::string(digits.size() < 7 ? 7 - digits.size() : 0, '0') + digits;
}

std::string IterationFormat::folder_name(int64_t step) const {
  return iteration_name(step);
}

std::vector<int64_t> IterationFormat::iterations(const Path& folder) const {
  std::vector<int64_t> steps;
  for (const Storage::Item& item : storage_.list(folder)) {
    const size_t digits = item.name.find_last_not_of("0123456789") + 1;
    int64_t step = 0;
    const char* end = item.name.data() + item.name.size();
    if (item.is_prefix && std::from_chars(item.name.data() + digits, end, step).ec == std::errc() &&
        item.name == folder_name(step) && is_whole(folder / item.name)) {
      steps.push_back(step);
    }
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

bool IterationFormat::detect(const Path& folder) const {
  return is_whole(folder) || !iterations(folder).empty();
}

std::optional<std::vector<int64_t>> IterationFormat::steps(const Path& folder) const {
  return is_whole(folder) ? std::nullopt : std::optional(iterations(folder));
}

std::unique_ptr<CheckpointReader>
IterationFormat::open(const Path& folder, std::optional<int64_t> step) const {
  return read(step ? folder / folder_name(*step) : folder);
}

} // namespace mh
