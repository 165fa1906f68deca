#pragma once
/// Our own checkpoints as a format: those of a run folder, in its folder checkpoints/.

#include "core/storage/step_folder.hpp"
#include "megahost/checkpoint_format.hpp"
#include "megahost/schema.hpp"

namespace mh {

class NativeFormat final : public CheckpointFormat {
public:
  struct Config {};

  static void fields(Fields<Config>&) {}

  NativeFormat(const Config& config, const Args& args);

  [[nodiscard]] std::string about() const override { return "run folder"; }

  [[nodiscard]] std::string mark() const override { return "checkpoints/"; }

  [[nodiscard]] bool detect(const Path& folder) const override;
  [[nodiscard]] std::optional<std::vector<int64_t>> steps(const Path& folder) const override;
  [[nodiscard]] std::unique_ptr<CheckpointReader>
  open(const Path& folder, std::optional<int64_t> step) const override;
  [[nodiscard]] Path place(const Path& folder) const override;
  void
  recover(const Path& folder, const std::function<void(const std::string&)>& warn) const override;
  void
  write(const Path& folder, const CheckpointContents& contents, const Ranks& ranks) const override;
  void remove(const Path& folder, int64_t step) const override;

private:
  [[nodiscard]] StepFolder steps_in(const Path& folder, const StepFolder::Warn& warn = {}) const;

  Storage& storage_;
};

} // namespace mh
