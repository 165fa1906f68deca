#pragma once
/// Slices of another program's tensors that fill ours, by the mapping that an architecture declares.

#include "megahost/architecture.hpp"
#include "megahost/checkpoint_format.hpp"
#include "megahost/parameter.hpp"

#include <functional>
#include <string>
#include <vector>

namespace mh {

/// The part of a tensor of ours that this rank has, and the destination of its values.
struct OwnPart {
  const Piece* piece = nullptr;
  at::Tensor value;
};

using OwnParts = std::function<OwnPart(const std::string& name)>;

/// Adds slices of `theirs`: for each of ours that it is made of, the boxes of theirs that this rank
/// holds, one for each group of rows.
///
/// Throws:  mh::Error (exit code 5) if theirs has another shape
void add_mapped_slices(
    const OwnParts& own_parts,
    const CheckpointReader& saved,
    const CheckpointTensor& theirs,
    const HfTensor& map,
    std::vector<Slice>& ret_slices
);

/// Advice for a tensor of another program that does not fit.
[[nodiscard]] const char* compare_hint(TensorNames names);

} // namespace mh
