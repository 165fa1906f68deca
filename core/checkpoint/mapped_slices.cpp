#include "core/checkpoint/mapped_slices.hpp"

#include "core/base/printable.hpp"
#include "core/checkpoint/format.hpp"
#include "core/checkpoint/hf.hpp"
#include "core/checkpoint/tensors.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace mh {

const char* compare_hint(TensorNames names) {
  return names == TensorNames::megatron
             ? "compare the recipe's section model with the arguments of Megatron-LM"
             : "compare the recipe's section model with config.json";
}

namespace {

/// The first element that this rank holds, in the order of their dimensions.
std::vector<int64_t> ordered_offset(const OwnPart& own, const HfTensor& map) {
  std::vector<int64_t> offset;
  for (const int64_t dim : map.order) {
    offset.push_back(own.piece->offset[static_cast<size_t>(dim)]);
  }
  return offset;
}

/// Adds the box of theirs that is a tensor of ours in another order of dimensions.
void add_ordered(
    const OwnPart& own,
    const CheckpointTensor& theirs,
    const HfTensor& map,
    MappedSlices& ret_slices
) {
  MH_ASSERT(
      map.ours.size() == 1 && map.groups == 1 && map.entries == 0 && map.at.empty() &&
          !map.transpose,
      "dimensions are reordered of one whole tensor"
  );
  const at::Tensor ordered = own.value.permute(map.order);
  std::vector<int64_t> offset = ordered_offset(own, map);
  if (!map.joined) {
    ret_slices.slices.push_back({theirs.name, theirs.shape, std::move(offset), ordered});
    return;
  }
  const int64_t inner = ordered.size(-1);
  MH_ASSERT(
      own.piece->global_shape[static_cast<size_t>(map.order.back())] == inner,
      "no strategy splits the inner one of two joined dimensions"
  );
  offset.pop_back();
  offset.back() *= inner;
  ret_slices.joined.push_back({{theirs.name, theirs.shape, std::move(offset), {}}, ordered});
}

/// The values of bytes with two 4-bit floats each (sign, 2 bits of exponent, 1 of mantissa), [256, 2].
at::Tensor fp4_pairs() {
  constexpr std::array<float, 8> kValues{0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const auto value = [&](unsigned bits) {
    return (bits & 8U) != 0 ? -kValues[bits & 7U] : kValues[bits & 7U];
  };
  std::vector<float> pairs;
  for (unsigned byte = 0; byte < 256; ++byte) {
    pairs.push_back(value(byte & 15U));
    pairs.push_back(value(byte >> 4U));
  }
  return at::tensor(pairs, at::kFloat).view({256, 2});
}

/// Columns are read in whole groups of 32, one expert at a time.
void read_packed(CheckpointReader& saved, const PackedSlice& packed) {
  const at::Tensor pairs = fp4_pairs();
  const int64_t columns = packed.own.size(-1), first = packed.offset[2] / 32;
  const int64_t groups = (packed.offset[2] + columns + 31) / 32 - first;
  for (int64_t e = 0; e < packed.own.size(0); ++e) {
    const at::Tensor own = packed.own.select(0, e);
    const int64_t rows = own.numel() / std::max<int64_t>(1, columns);
    const at::Tensor blocks = at::empty({1, rows, groups, 16}, at::kByte);
    const at::Tensor scales = at::empty({1, rows, groups}, at::kByte);
    const std::vector<int64_t> at{packed.offset[0] + e, packed.offset[1], first};
    const std::array<Slice, 2> boxes{
        Slice{packed.blocks->name, packed.blocks->shape, {at[0], at[1], at[2], 0}, blocks},
        Slice{packed.scales->name, packed.scales->shape, at, scales}};
    saved.read(boxes);
    const at::Tensor factors = scales.to(at::kFloat).sub(127).exp2().unsqueeze(-1);
    const at::Tensor values =
        at::index_select(pairs, 0, blocks.reshape({-1}).to(at::kInt)).view({1, rows, groups, 32});
    const at::Tensor whole = (values * factors).view({rows, groups * 32});
    own.copy_(whole.narrow(1, packed.offset[2] - 32 * first, columns).reshape(own.sizes()));
  }
}

} // namespace

bool is_packed(const CheckpointReader& saved, const HfTensor& map) {
  return map.order.size() >= 3 && saved.find(map.theirs + "_blocks") != nullptr &&
         saved.find(map.theirs + "_scales") != nullptr;
}

void add_packed_slice(
    const OwnParts& own_parts,
    const CheckpointReader& saved,
    const HfTensor& map,
    MappedSlices& ret_slices
) {
  const CheckpointTensor* blocks = saved.find(map.theirs + "_blocks");
  const CheckpointTensor* scales = saved.find(map.theirs + "_scales");
  const OwnPart mine = own_parts(map.ours.front());
  const std::vector<int64_t> sizes = // [experts, columns, rows]
      hf_tensor(
          map, [&](const std::string&) { return at::empty(mine.piece->global_shape, at::kMeta); }
      )
          .sizes()
          .vec();
  const std::vector<int64_t> groups{sizes[0], sizes[2], sizes[1] / 32};
  std::vector<int64_t> bytes = groups;
  bytes.push_back(16);
  if (sizes[1] % 32 != 0 || scales->shape != groups || blocks->shape != bytes) {
    throw Error(
        saved.path().string() + ": " + blocks->name + " and " + scales->name + " have the shapes " +
            shape_text(blocks->shape) + " and " + shape_text(scales->shape) +
            ", the recipe's model needs " + shape_text(bytes) + " and " + shape_text(groups),
        compare_hint(saved.names()),
        exit_code::data
    );
  }
  const std::vector<int64_t> offset = ordered_offset(mine, map);
  const at::Tensor ordered = mine.value.permute(map.order); // experts, columns, rows
  const int64_t inner = map.joined ? ordered.size(-1) : 1;
  ret_slices.packed.push_back(
      {blocks, scales, {offset[0], offset[2] * inner, offset[1]}, ordered.movedim(1, -1)}
  );
}

namespace {

/// Sizes of the box that a joined slice reads.
std::vector<int64_t> joined_sizes(const JoinedSlice& one) {
  std::vector<int64_t> sizes = one.own.sizes().vec();
  sizes.pop_back();
  sizes.back() *= one.own.size(-1);
  return sizes;
}

} // namespace

uint64_t bytes_to_read(
    const CheckpointReader& saved, const MappedSlices& slices, const std::vector<uint64_t>& largest
) {
  const bool by_rows = saved.names() != TensorNames::own; // else whole boxes, with their checksums
  const auto bytes = [&](const CheckpointTensor& tensor, int64_t rows) {
    const uint64_t box = largest[index_of(saved, tensor)];
    const int64_t all = tensor.shape.empty() ? 1 : std::max<int64_t>(1, tensor.shape[0]);
    const uint64_t row = value_bytes(tensor.dtype, tensor.shape) / static_cast<uint64_t>(all);
    return by_rows ? std::min(box, row * static_cast<uint64_t>(rows)) : box;
  };
  std::map<const CheckpointTensor*, std::pair<int64_t, int64_t>> rows; // the first, and the end
  const auto is_read_in_place = [&](const Slice& one, const CheckpointTensor& tensor) {
    const auto own = one.local.sizes().vec();
    const ptrdiff_t first = by_rows && !own.empty() ? 1 : 0; // rows lie one after the other
    return one.local.scalar_type() == tensor.dtype &&
           std::equal(own.begin() + first, own.end(), tensor.shape.begin() + first) &&
           largest[index_of(saved, tensor)] == value_bytes(tensor.dtype, tensor.shape);
  };
  for (const Slice& one : slices.slices) {
    if (is_read_in_place(one, *saved.find(one.name))) {
      continue;
    }
    const int64_t begin = one.offset.empty() ? 0 : one.offset[0];
    const int64_t end = begin + (one.offset.empty() ? 1 : one.local.size(0));
    auto& hull = rows.try_emplace(saved.find(one.name), begin, end).first->second;
    hull = {std::min(hull.first, begin), std::max(hull.second, end)};
  }
  uint64_t most = 0;
  for (const auto& [tensor, hull] : rows) {
    most = std::max(most, bytes(*tensor, hull.second - hull.first));
  }
  for (const JoinedSlice& one : slices.joined) {
    const uint64_t own = value_bytes(one.own.scalar_type(), one.own.sizes().vec());
    const int64_t count = joined_sizes(one).front();
    most = std::max(most, own + bytes(*saved.find(one.box.name), count));
  }
  for (const PackedSlice& one :
       slices.packed) { // an expert's values take half a byte, and two floats
    const int64_t elements = one.own.numel() / std::max<int64_t>(1, one.own.size(0));
    most = std::max(most, static_cast<uint64_t>(elements) * 17 / 2);
  }
  return most;
}

void read_mapped(CheckpointReader& saved, const MappedSlices& slices) {
  saved.read(slices.slices);
  for (const PackedSlice& one : slices.packed) {
    read_packed(saved, one);
  }
  for (const JoinedSlice& one : slices.joined) {
    Slice slice = one.box;
    slice.local = at::empty(joined_sizes(one), at::TensorOptions(one.own.scalar_type()));
    saved.read({&slice, 1});
    one.own.copy_(slice.local.view(one.own.sizes()));
  }
}

void add_mapped_slices(
    const OwnParts& own_parts,
    const CheckpointReader& saved,
    const CheckpointTensor& theirs,
    const HfTensor& map,
    MappedSlices& ret_slices
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
  if (!map.order.empty()) {
    add_ordered(own_parts(map.ours.front()), theirs, map, ret_slices);
    return;
  }
  const auto add = [&](const at::Tensor& own, std::vector<int64_t> offset) {
    if (map.transpose) {
      std::reverse(offset.begin(), offset.end());
    }
    ret_slices.slices.push_back(
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
