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

/// A box of theirs that no tensor of ours is a view of, as two dimensions of ours are one of theirs:
/// it is read into memory of its own.
struct JoinedSlice {
  Slice box;      ///< `local` is undefined
  at::Tensor own; ///< ours in the order of theirs; its last two dimensions are theirs' last
};

/// A box of theirs that is stored in 4-bit floats, 32 of a row with one scale.
///
/// Source:  OCP Microscaling Formats v1.0, MXFP4; names and order as in GPT-OSS's weights
struct PackedSlice {
  /// [experts, rows, columns / 32, 16] bytes, each with an earlier value in its low bits.
  const CheckpointTensor* blocks;
  const CheckpointTensor* scales; ///< [experts, rows, columns / 32] exponents of 2, plus 127
  std::vector<int64_t> offset;    ///< the first element in [experts, rows, columns]
  at::Tensor own; ///< ours as [experts, rows, columns], or rows as two dimensions that are joined
};

/// Slices that fill ours.
struct MappedSlices {
  std::vector<Slice> slices{};
  std::vector<JoinedSlice> joined{};
  std::vector<PackedSlice> packed{};
};

/// Adds slices of `theirs`: for each of ours that it is made of, the boxes of theirs that this rank
/// holds, one for each group of rows.
///
/// Throws:  mh::Error (exit code 5) if theirs has another shape
void add_mapped_slices(
    const OwnParts& own_parts,
    const CheckpointReader& saved,
    const CheckpointTensor& theirs,
    const HfTensor& map,
    MappedSlices& ret_slices
);

/// Whether a tensor of theirs is stored as NAME_blocks and NAME_scales.
[[nodiscard]] bool is_packed(const CheckpointReader& saved, const HfTensor& map);

/// Adds the slice of one that is.
///
/// Throws:  mh::Error (exit code 5) if blocks or scales have other shapes
void add_packed_slice(
    const OwnParts& own_parts,
    const CheckpointReader& saved,
    const HfTensor& map,
    MappedSlices& ret_slices
);

/// Bytes that are in memory while they are read, next to what they fill, at most.
///
/// largest:  as `largest_boxes` gives them
[[nodiscard]] uint64_t bytes_to_read(
    const CheckpointReader& saved, const MappedSlices& slices, const std::vector<uint64_t>& largest
);

/// Reads them all; of those that are joined or packed one at a time is in memory.
void read_mapped(CheckpointReader& saved, const MappedSlices& slices);

/// Advice for a tensor of another program that does not fit.
[[nodiscard]] const char* compare_hint(TensorNames names);

} // namespace mh
