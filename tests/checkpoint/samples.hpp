#pragma once
/// Tensors with recognisable values, and the slices that a layout makes of them.

#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/format.hpp"
#include "core/storage/local.hpp"
#include "tests/storage/memory_file_system.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

namespace mh::test {

inline at::Tensor
counting(std::vector<int64_t> shape, double start, at::ScalarType type = at::kFloat) {
  int64_t count = 1;
  for (const int64_t size : shape) {
    count *= size;
  }
  return at::arange(count, at::TensorOptions(at::kDouble)).add(start).reshape(shape).to(type);
}

inline std::vector<int64_t> zeros_like(const std::vector<int64_t>& shape) {
  return std::vector<int64_t>(shape.size(), 0);
}

inline Slice whole(std::string name, at::Tensor value) {
  const auto shape = value.sizes().vec();
  return {std::move(name), shape, zeros_like(shape), std::move(value)};
}

/// Part `index` of `parts` along a dimension.
inline Slice part_of(const Slice& slice, int64_t dim, int64_t index, int64_t parts) {
  const int64_t size = slice.local.size(dim) / parts;
  Slice part = slice;
  part.offset[static_cast<size_t>(dim)] += index * size;
  part.local = slice.local.narrow(dim, index * size, size);
  return part;
}

/// A small model: weights in two dtypes, a scalar, and optimizer state.
inline std::vector<Slice> model(double start = 1) {
  return {
      whole("layer.weight", counting({4, 6}, start)),
      whole("layer.bias", counting({4}, start + 100, at::kBFloat16)),
      whole("optimizer.exp_avg.layer.weight", counting({4, 6}, start + 200)),
      whole("scale", counting({}, start + 300)),
      whole("steps", counting({2}, start + 400, at::kLong)),
  };
}

/// The same slices, filled with zeros.
inline std::vector<Slice> blank(std::vector<Slice> slices) {
  for (Slice& slice : slices) {
    slice.local = at::zeros(slice.local.sizes(), slice.local.options());
  }
  return slices;
}

inline bool equal(const std::vector<Slice>& a, const std::vector<Slice>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (!a[i].local.equal(b[i].local)) {
      return false;
    }
  }
  return a.size() == b.size();
}

struct Saves {
  MemoryFileSystem files;
  LocalStorage disk{files};
  std::vector<std::string> warnings;
  StepFolder folder{
      disk, "/run", kManifestName, [this](const std::string& text) { warnings.push_back(text); }};

  Saves() { folder.recover(); }

  void save(int64_t step, const std::vector<Slice>& slices) {
    write_checkpoint(disk, folder, step, {{"samples", step * 8}}, slices);
  }

  void load(int64_t step, const std::vector<Slice>& slices, OtherDtype other = OtherDtype::refuse) {
    Checkpoint(disk, folder.path(step)).load(slices, other);
  }
};

} // namespace mh::test
