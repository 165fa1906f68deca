#include "core/checkpoint/assembled.hpp"

#include "core/base/printable.hpp"
#include "core/checkpoint/format.hpp"
#include "core/checkpoint/tensors.hpp"

#include <ATen/ops/empty.h>

#include <utility>

namespace mh {

namespace {

[[noreturn]] void refuse_parts(const Path& path, const std::string& name, const std::string& why) {
  throw Error(
      path.string() + ": tensor " + printable(name) + ": " + why,
      "the checkpoint is damaged or incomplete: use another one",
      exit_code::data
  );
}

/// Why a part does not lie in its source; empty if it does.
std::string part_problem(const AssembledPart& part, const CheckpointTensor& source) {
  const size_t outer = part.is_flat() ? 0 : source.shape.size() - part.box.shape.size();
  for (size_t d = 0; d < source.shape.size(); ++d) {
    const int64_t size = part.is_flat() ? part.box.elements()
                         : d < outer    ? 1
                                        : part.box.shape[d - outer];
    if (part.from[d] < 0 || part.from[d] > source.shape[d] - size) {
      return "it does not lie in " + printable(source.name) + " of the shape " +
             shape_text(source.shape);
    }
  }
  return "";
}

} // namespace

AssembledReader::AssembledReader(
    std::unique_ptr<CheckpointReader> inner,
    std::vector<AssembledTensor> tensors,
    TensorNames names,
    std::string arguments
)
    : inner_(std::move(inner))
    , names_(names)
    , arguments_(std::move(arguments)) {
  for (AssembledTensor& one : tensors) {
    const std::string& name = one.tensor.name;
    StoredTensor cover{name, dtype_of(one.tensor.dtype), one.tensor.shape, {}};
    for (const AssembledPart& part : one.parts) {
      const CheckpointTensor& source = inner_->tensors().at(part.source);
      MH_ASSERT(
          part.from.size() == source.shape.size() &&
              (part.box.shape.size() <= part.from.size() || part.from.size() == 1),
          "a part with other dimensions than its source"
      );
      if (const std::string why = part_problem(part, source); !why.empty()) {
        refuse_parts(inner_->path(), name, why);
      }
      if (part.box.elements() > 0) {
        cover.chunks.push_back({"", part.box.offset, part.box.shape});
      }
    }
    if (const std::string why = cover_problem(cover); !why.empty()) {
      refuse_parts(inner_->path(), name, why);
    }
    tensors_.push_back(std::move(one.tensor));
    parts_.push_back(std::move(one.parts));
  }
}

void AssembledReader::read_flat(const AssembledPart& part, const Box& both, const at::Tensor& into)
    const {
  const CheckpointTensor& source = inner_->tensors()[part.source];
  const int64_t row = part.box.shape[0] == 0 ? 0 : part.box.elements() / part.box.shape[0];
  const at::Tensor rows = at::empty({both.shape[0] * row}, at::TensorOptions(into.scalar_type()));
  const Slice slice{
      source.name,
      source.shape,
      {part.from[0] + (both.offset[0] - part.box.offset[0]) * row},
      rows};
  inner_->read({&slice, 1});
  Box box = part.box;
  box.offset[0] = both.offset[0];
  box.shape[0] = both.shape[0];
  into.copy_(box.cut(rows.view(box.shape), both));
}

void AssembledReader::read(std::span<const Slice> slices) {
  std::vector<Slice> wanted;
  for (const Slice& slice : slices) {
    const CheckpointTensor& known = require_fit(*this, slice);
    const Box own{slice.offset, slice.local.sizes().vec()};
    for (const AssembledPart& part : parts_[index_of(*this, known)]) {
      const Box both = own.common(part.box);
      if (both.elements() == 0) {
        continue;
      }
      if (part.is_flat()) {
        read_flat(part, both, own.cut(slice.local, both));
        continue;
      }
      const CheckpointTensor& source = inner_->tensors()[part.source];
      Slice one{source.name, source.shape, part.from, own.cut(slice.local, both)};
      const size_t outer = source.shape.size() - both.shape.size();
      for (size_t d = 0; d < both.shape.size(); ++d) {
        one.offset[outer + d] += both.offset[d] - part.box.offset[d];
      }
      for (size_t d = 0; d < outer; ++d) {
        one.local = one.local.unsqueeze(0);
      }
      wanted.push_back(std::move(one));
    }
  }
  inner_->read(wanted);
}

} // namespace mh
