#include "core/checkpoint/native.hpp"

#include "core/checkpoint/checkpoint.hpp"

namespace mh {

namespace {

constexpr const char* kFolder = "checkpoints";

} // namespace

NativeFormat::NativeFormat(const Config&, const Args& args)
    : storage_(args.storage) {}

StepFolder NativeFormat::steps_in(const Path& folder, const StepFolder::Warn& warn) const {
  return {storage_, place(folder), kManifestName, warn};
}

Path NativeFormat::place(const Path& folder) const {
  return folder / kFolder;
}

bool NativeFormat::detect(const Path& folder) const {
  return !storage_.list(place(folder)).empty();
}

std::optional<std::vector<int64_t>> NativeFormat::steps(const Path& folder) const {
  return steps_in(folder).steps();
}

std::unique_ptr<CheckpointReader>
NativeFormat::open(const Path& folder, std::optional<int64_t> step) const {
  MH_ASSERT(step, "a run folder has checkpoints of steps");
  return std::make_unique<Checkpoint>(storage_, steps_in(folder).path(*step));
}

void NativeFormat::recover(const Path& folder, const std::function<void(const std::string&)>& warn)
    const {
  steps_in(folder, warn).recover();
}

void NativeFormat::write(const Path& folder, const CheckpointContents& contents, const Ranks& ranks)
    const {
  StepFolder steps = steps_in(folder, contents.warn);
  on_first(ranks, [&] {
    steps.recover();
    return std::string();
  });
  const auto state = nlohmann::json::parse(contents.state);
  write_checkpoint(storage_, steps, contents.step, state, contents.slices, ranks);
}

void NativeFormat::remove(const Path& folder, int64_t step) const {
  steps_in(folder).remove(step);
}

} // namespace mh
