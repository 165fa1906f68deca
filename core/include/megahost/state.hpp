#pragma once
/// The state that flows from block to block: a few named activations.
///
/// Decoders carry one, "hidden" [seq, batch, embed]; encoder-decoder models carry the encoder's
/// output next to it. The dimensions travel with the tensor, so a pipeline knows what to send and
/// receive.

#include "megahost/axis.hpp"
#include "megahost/error.hpp"
#include "megahost/export.hpp"

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mh {

struct Activation {
  at::Tensor value; ///< this rank's part
  Dims dims;        ///< global dimensions
};

class MH_API State {
public:
  State() = default;
  State(std::string name, at::Tensor value, Dims dims);

  [[nodiscard]] bool has(std::string_view name) const;
  /// Throws:  mh::InternalError naming what the state holds, if there is no such activation
  [[nodiscard]] const Activation& operator[](std::string_view name) const;
  /// Adds or replaces.
  void set(std::string_view name, at::Tensor value, Dims dims);
  /// A copy with another value under an existing name.
  [[nodiscard]] State with(std::string_view name, at::Tensor value) const;

  [[nodiscard]] auto begin() const { return items_.begin(); }

  [[nodiscard]] auto end() const { return items_.end(); }

  [[nodiscard]] size_t size() const { return items_.size(); }

private:
  std::vector<std::pair<std::string, Activation>> items_;
};

} // namespace mh
