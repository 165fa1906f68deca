#include "core/program/collectives.hpp"

#include "core/base/text.hpp"
#include "core/kernels/registration.hpp"
#include "core/mesh/layout.hpp"
#include "core/mesh/silent.hpp"
#include "megahost/error.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <mutex>
#include <vector>

namespace mh::program {

namespace {

using at::Tensor;

Tensor same_size(const Tensor& x, c10::string_view, c10::string_view) {
  return at::empty_like(x, at::MemoryFormat::Contiguous);
}

Tensor gathered_size(const Tensor& x, c10::string_view, int64_t ranks) {
  auto sizes = x.sizes().vec();
  sizes[0] *= ranks;
  return at::empty(sizes, x.options());
}

Tensor scattered_size(const Tensor& x, c10::string_view, c10::string_view, int64_t ranks) {
  auto sizes = x.sizes().vec();
  sizes[0] /= ranks;
  return at::empty(sizes, x.options());
}

Tensor exchanged_size(const Tensor& x, c10::string_view, int64_t) {
  return at::empty(x.sizes(), x.options());
}

void define_collectives() {
  static std::once_flag once;
  std::call_once(once, [] {
    torch::Library& definitions =
        ops::lasting_library(torch::Library::DEF, "mh_program", std::nullopt);
    torch::Library& meta =
        ops::lasting_library(torch::Library::IMPL, "mh_program", c10::DispatchKey::Meta);
    definitions.def("all_reduce(Tensor x, str groups, str reduce) -> Tensor");
    definitions.def("all_gather(Tensor x, str groups, int ranks) -> Tensor");
    definitions.def("reduce_scatter(Tensor x, str groups, str reduce, int ranks) -> Tensor");
    definitions.def("all_to_all(Tensor x, str groups, int ranks) -> Tensor");
    meta.impl("all_reduce", same_size);
    meta.impl("all_gather", gathered_size);
    meta.impl("reduce_scatter", scattered_size);
    meta.impl("all_to_all", exchanged_size);
  });
}

/// All groups that do the same at the same time: those along the axis, in blocks of one size.
std::string
groups_text(const MeshShape& shape, const std::string& order, const SilentGroup& group) {
  std::vector<std::vector<int64_t>> wholes;
  if (group.axis == "world") {
    wholes = {group.members};
  }
  for (const MeshAxis axis : kAllMeshAxes) {
    if (to_string(axis) == group.axis) {
      wholes = mesh_groups(shape, axis, order);
    }
  }
  std::vector<std::string> texts;
  const size_t size = group.members.size();
  for (const auto& whole : wholes) {
    for (size_t first = 0; first + size <= whole.size(); first += size) {
      std::vector<std::string> ranks;
      for (size_t i = 0; i < size; ++i) {
        ranks.push_back(std::to_string(whole[first + i]));
      }
      texts.push_back("[" + join(ranks, ", ") + "]");
    }
  }
  return "[" + join(texts, ", ") + "]";
}

/// Answers in host memory: the others have the same values. A gather's result is known without us.
bool answer_on_host(const SilentCollective& asked) {
  if (asked.name == "all-gather") {
    return false;
  }
  if (asked.name != "all-reduce") {
    throw Error(
        "this step cannot become a program yet: ranks exchange different numbers in host memory (" +
            std::string(asked.name) + " of axis " + asked.group.axis + ")",
        "choose another layout"
    );
  }
  if (asked.reduce == "sum") {
    Tensor(asked.output).mul_(static_cast<int64_t>(asked.group.members.size()));
  }
  return true;
}

bool record_collective(
    const SilentCollective& asked, const MeshShape& shape, const std::string& order
) {
  if (asked.name == "send" || asked.name == "receive") {
    throw Error(
        "this step cannot become a program yet: ranks of axis " + asked.group.axis +
            " send each other tensors one by one",
        "choose a layout of collectives alone: without pipelines, and without attention around a ring"
    );
  }
  if (!asked.input.is_meta()) {
    return answer_on_host(asked);
  }
  const auto ranks = static_cast<int64_t>(asked.group.members.size());
  const std::string groups = groups_text(shape, order, asked.group);
  Tensor result;
  if (asked.name == "all-reduce") {
    static const auto op = ops::find_op<Tensor(const Tensor&, c10::string_view, c10::string_view)>(
        collective::kAllReduce
    );
    result = op.call(asked.input, groups, asked.reduce);
  } else if (asked.name == "all-gather") {
    static const auto op =
        ops::find_op<Tensor(const Tensor&, c10::string_view, int64_t)>(collective::kAllGather);
    result = op.call(asked.input, groups, ranks);
  } else if (asked.name == "reduce-scatter") {
    static const auto op =
        ops::find_op<Tensor(const Tensor&, c10::string_view, c10::string_view, int64_t)>(
            collective::kReduceScatter
        );
    result = op.call(asked.input, groups, asked.reduce, ranks);
  } else {
    static const auto op =
        ops::find_op<Tensor(const Tensor&, c10::string_view, int64_t)>(collective::kAllToAll);
    result = op.call(asked.input, groups, ranks);
  }
  Tensor(asked.output).copy_(result.view(asked.output.sizes()));
  return true;
}

} // namespace

Mesh recorded_mesh(const MeshShape& shape, int64_t rank, const std::string& order) {
  define_collectives();
  return alone(
      shape,
      rank,
      {.order = order,
       .compute = [shape, order](const SilentCollective& asked
                  ) { return record_collective(asked, shape, order); }}
  );
}

} // namespace mh::program
