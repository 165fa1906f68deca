#include "core/step/owned.hpp"

#include <c10/util/accumulate.h>

#include <algorithm>

namespace mh {
namespace {

struct SliceBox {
  std::vector<int64_t> start, size;
};

/// The boxes that cover elements [begin, end) of a contiguous tensor.
std::vector<SliceBox> boxes(at::IntArrayRef sizes, int64_t begin, int64_t end) {
  if (sizes.size() == 1) {
    return {{{begin}, {end - begin}}};
  }
  const auto inner = sizes.slice(1);
  const int64_t width = c10::multiply_integers(inner);
  std::vector<SliceBox> all;
  while (begin < end) {
    const int64_t row = begin / width;
    const int64_t column = begin % width;
    if (column == 0 && end - begin >= width) {
      SliceBox rows{{row}, {(end - begin) / width}};
      rows.start.resize(sizes.size(), 0);
      rows.size.insert(rows.size.end(), inner.begin(), inner.end());
      begin += rows.size[0] * width;
      all.push_back(std::move(rows));
      continue;
    }
    const int64_t stop = std::min(end, (row + 1) * width);
    for (auto& part : boxes(inner, column, column + stop - begin)) {
      part.start.insert(part.start.begin(), row);
      part.size.insert(part.size.begin(), 1);
      all.push_back(std::move(part));
    }
    begin = stop;
  }
  return all;
}

} // namespace

std::vector<Piece>
parts_of(const Parameter& parameter, const Piece& piece, int64_t begin, int64_t end) {
  const auto sizes = parameter.value.sizes();
  const int64_t width = c10::multiply_integers(sizes.slice(1));
  begin = std::max(begin, piece.row * width);
  end = std::min(end, (piece.row + piece.shape[0]) * width);
  std::vector<Piece> parts;
  if (begin >= end) {
    return parts;
  }
  for (const auto& box : boxes(sizes, begin, end)) {
    Piece part = piece;
    part.row = box.start[0];
    part.inside.assign(box.start.begin() + 1, box.start.end());
    part.shape = box.size;
    part.offset[0] += box.start[0] - piece.row;
    for (size_t d = 1; d < box.start.size(); ++d) {
      part.offset[d] += box.start[d];
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

} // namespace mh
