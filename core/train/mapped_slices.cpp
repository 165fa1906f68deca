#include "core/train/mapped_slices.hpp"

#include "core/base/printable.hpp"
#include "core/checkpoint/hf.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

namespace mh {

const char* compare_hint(TensorNames names) {
  return names == TensorNames::megatron
             ? "compare the recipe's section model with the arguments of Megatron-LM"
             : "compare the recipe's section model with config.json";
}

void add_mapped_slices(
    const OwnParts& own_parts,
    const CheckpointReader& saved,
    const CheckpointTensor& theirs,
    const HfTensor& map,
    std::vector<Slice>& ret_slices
) {
  const at::Tensor expected = hf_tensor(map, [&](const std::string& name) {
    return at::empty(own_parts(name).piece->global_shape, at::kMeta);
  });
  std::vector<int64_t> read = theirs.shape; // without padding
  if (map.padded && !read.empty() && read[0] > expected.size(0)) {
    read[0] = expected.size(0);
  }
  if (expected.sizes() != at::IntArrayRef(read)) {
    throw Error(
        saved.path().string() + ": " + theirs.name + " has the shape " + shape_text(theirs.shape) +
            ", the recipe's model needs " + shape_text(expected.sizes()),
        compare_hint(saved.names()),
        exit_code::data
    );
  }
  const auto add = [&](const at::Tensor& own, std::vector<int64_t> offset) {
    if (map.transpose) {
      std::reverse(offset.begin(), offset.end());
    }
    ret_slices.push_back(
        {theirs.name, theirs.shape, std::move(offset), map.transpose ? own.t() : own}
    );
  };
  const int64_t group = (map.transpose ? read.back() : read.front()) / map.groups;
  int64_t row = 0; // row where ours begins in a group of theirs
  for (const HfPart& part : parts_of(map)) {
    const OwnPart mine = own_parts(part.ours);
    const Piece& piece = *mine.piece;
    const size_t first = part.at.size(); // dimension 0 of theirs
    at::Tensor own = mine.value;
    bool is_here = true; // the entry that theirs is lies on this rank
    for (size_t i = 0; i < part.at.size(); ++i) {
      const int64_t index = part.at[i] - piece.offset[i];
      is_here = is_here && index >= 0 && index < piece.shape[i];
      own = is_here ? own.select(0, index) : own;
    }
    const int64_t rows = piece.global_shape[first] / map.groups;
    for (int64_t done = 0, count = 0; is_here && done < own.size(0); done += count) {
      std::vector<int64_t> offset(
          piece.offset.begin() + static_cast<int64_t>(first), piece.offset.end()
      );
      const int64_t at = offset[0] + done; // row of ours
      count = std::min(own.size(0) - done, rows - at % rows);
      offset[0] = at / rows * group + row + at % rows;
      add(own.narrow(0, done, count), std::move(offset));
    }
    row += rows;
  }
}

} // namespace mh
