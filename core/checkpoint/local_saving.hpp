#pragma once
/// Local checkpoints of a run: where they are, and by whom they may be recovered.

#include "core/checkpoint/local_saves.hpp"
#include "megahost/mesh.hpp"
#include "megahost/recipe.hpp"

#include <string>

namespace mh {

/// The folder of a run's local checkpoints on a node: several runs may share `checkpoint.local_dir`.
/// `saves`: the folder of its other checkpoints.
[[nodiscard]] Path local_folder(const Recipe& recipe, const Path& saves, int64_t node);

/// See LocalSaves::Terms.
[[nodiscard]] std::string local_layout(const Mesh& mesh, const Nodes& nodes);

/// A node's part of one step as a format, for `load_checkpoint`.
class LocalFormat final : public CheckpointFormat {
public:
  LocalFormat(const LocalSaves& saves, int64_t step)
      : saves_(saves)
      , step_(step) {}

  [[nodiscard]] std::string about() const override { return "local checkpoint"; }

  [[nodiscard]] std::string mark() const override { return "node-00000/"; }

  [[nodiscard]] bool detect(const Path&) const override { return true; }

  [[nodiscard]] std::optional<std::vector<int64_t>> steps(const Path&) const override {
    return std::vector{step_};
  }

  [[nodiscard]] std::unique_ptr<CheckpointReader>
  open(const Path&, std::optional<int64_t> step) const override {
    return saves_.open(*step);
  }

  [[nodiscard]] Path place(const Path&) const override { return saves_.folder(); }

private:
  const LocalSaves& saves_;
  int64_t step_;
};

} // namespace mh
