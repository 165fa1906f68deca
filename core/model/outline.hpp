#pragma once
/// A whole model on the Meta device: what each of its blocks costs, which parameters they share,
/// and what passes from one to the next. Nothing of it depends on a layout.

#include "core/model/plugin_call.hpp"
#include "megahost/architecture.hpp"
#include "megahost/builder.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace mh {

/// The layers of a model, between its embedding and its head.
[[nodiscard]] inline int64_t layer_count(const Architecture& architecture) {
  return in_plugin(architecture, "layers", [&] { return architecture.layers(); });
}

/// The blocks of a model in order: the embedding, the layers, the head.
[[nodiscard]] inline int64_t block_count(const Architecture& architecture) {
  return layer_count(architecture) + 2;
}

/// "embedding", "layers.3", "head": the names of its parameters begin so.
[[nodiscard]] std::string block_name(const Architecture& architecture, int64_t block);

/// Makes one, its parameters in the builder's store.
[[nodiscard]] std::unique_ptr<Block>
make_block(const Architecture& architecture, int64_t block, Builder& builder);

class Outline {
public:
  struct Part {
    Flops flops{};
    int64_t elements = 0;              ///< elements of the parameters it makes
    std::vector<std::string> makes{};  ///< global names of those
    std::vector<std::string> shares{}; ///< global names of those that it takes from earlier blocks
  };

  /// Sizes and dtype are those of `args`; mesh and rules are not looked at.
  Outline(const Architecture& architecture, const Builder::Args& args);

  /// One per block.
  [[nodiscard]] const std::vector<Part>& parts() const { return parts_; }

  /// The block that makes the parameter of this name.
  [[nodiscard]] int64_t maker(const std::string& name) const;

  [[nodiscard]] Flops flops() const;
  [[nodiscard]] int64_t elements() const;

  /// The states that blocks `first` (ascending, from 1) take for such a batch, which is read as if
  /// it were whole.
  [[nodiscard]] std::vector<State>
  states_before(const std::vector<int64_t>& first, const Batch& batch) const;

private:
  PluginPlace place_; // the blocks' forward passes
  Mesh mesh_;
  Rules rules_;
  std::unique_ptr<ParameterStore> store_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<std::string> names_; // the blocks' names
  std::vector<Part> parts_;
};

} // namespace mh
