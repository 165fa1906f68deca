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

std::vector<int64_t> IterationFormat::folders(const Path& folder) const {
  std::vector<int64_t> steps;
  for (const Storage::Item& item : storage_.list(folder)) {
    const size_t digits = item.name.find_last_not_of("0123456789") + 1;
    int64_t step = 0;
    const char* end = item.name.data() + item.name.size();
    if (item.is_prefix && std::from_chars(item.name.data() + digits, end, step).ec == std::errc() &&
        item.name == folder_name(step)) {
      steps.push_back(step);
    }
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

std::vector<int64_t> IterationFormat::iterations(const Path& folder) const {
  std::vector<int64_t> steps = folders(folder);
  std::erase_if(steps, [&](int64_t step) { return !is_whole(folder / folder_name(step)); });
  return steps;
}

std::optional<Path> IterationFormat::begun(const Path& folder) const {
  if (!lacking(folder).empty()) {
    return folder;
  }
  for (const int64_t step : folders(folder)) {
    if (!lacking(folder / folder_name(step)).empty()) {
      return folder / folder_name(step);
    }
  }
  return std::nullopt;
}

bool IterationFormat::detect(const Path& folder) const {
  return is_whole(folder) || !iterations(folder).empty() || begun(folder);
}

std::optional<std::vector<int64_t>> IterationFormat::steps(const Path& folder) const {
  if (is_whole(folder)) {
    return std::nullopt;
  }
  std::vector<int64_t> whole = iterations(folder);
  if (const auto half = whole.empty() ? begun(folder) : std::nullopt) {
    throw Error(
        half->string() + " was begun and is not whole: " + lacking(*half) +
            ", which is written last, is not there",
        "if no program writes it any more, export it again, or remove it",
        exit_code::data
    );
  }
  return whole;
}

std::unique_ptr<CheckpointReader>
IterationFormat::open(const Path& folder, std::optional<int64_t> step) const {
  return read(step ? folder / folder_name(*step) : folder);
}

} // namespace mh
