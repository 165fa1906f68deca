#include "core/program/collectives.hpp"

#include "core/base/text.hpp"
#include "core/kernels/registration.hpp"
#include "core/mesh/layout.hpp"
#include "core/mesh/silent.hpp"
#include "megahost/error.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <mutex>
#include <utility>
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

/// The recording of a rank's collectives.
struct Recording {
  MeshShape shape;
  std::string order;
  std::vector<int64_t> replicas; ///< ranks of this one's stage
  StageTransfers& stages;
};

/// All groups of a stage that do the same at the same time: those along the axis, in blocks of one
/// size. Their members are replicas.
std::string groups_text(const Recording& recording, const std::string& axis_name, size_t size) {
  const auto& replicas = recording.replicas;
  std::vector<std::vector<int64_t>> wholes;
  if (axis_name == "world") {
    wholes = {replicas};
  }
  for (const MeshAxis axis : kAllMeshAxes) {
    if (to_string(axis) == axis_name) {
      wholes = mesh_groups(recording.shape, axis, recording.order);
    }
  }
  std::vector<std::string> texts;
  for (const auto& whole : wholes) {
    if (!std::ranges::binary_search(replicas, whole.front())) {
      continue; // another stage has it
    }
    for (size_t first = 0; first + size <= whole.size(); first += size) {
      std::vector<std::string> members;
      for (size_t i = 0; i < size; ++i) {
        const auto at = std::ranges::lower_bound(replicas, whole[first + i]);
        members.push_back(std::to_string(at - replicas.begin()));
      }
      texts.push_back("[" + join(members, ", ") + "]");
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

Tensor recorded_all_reduce(const Tensor& x, const std::string& groups, std::string_view reduce) {
  static const auto op =
      ops::find_op<Tensor(const Tensor&, c10::string_view, c10::string_view)>(collective::kAllReduce
      );
  return op.call(x, groups, reduce);
}

/// A collective or a transfer between stages.
void record_between_stages(const SilentCollective& asked, const Recording& recording) {
  StageTransfers& stages = recording.stages;
  if (asked.name == "send") {
    stages.send(asked.input, asked.peer);
  } else if (asked.name == "receive") {
    stages.receive(asked.output, asked.peer);
  } else if (asked.name == "all-reduce" && asked.reduce == "sum") {
    const size_t replicas = recording.replicas.size();
    const bool all = asked.group.axis == "world" && replicas > 1;
    const Tensor own =
        all ? recorded_all_reduce(
                  asked.input, groups_text(recording, asked.group.axis, replicas), asked.reduce
              )
            : asked.input;
    Tensor(asked.output).copy_(stages.sum(own));
  } else {
    throw Error(
        "this step cannot become a program yet: pipeline stages exchange tensors by " +
            std::string(asked.name),
        "choose a layout of one stage"
    );
  }
}

bool record_collective(const SilentCollective& asked, const Recording& recording) {
  const std::string& axis = asked.group.axis;
  const bool between =
      axis == to_string(MeshAxis::pp) || (axis == "world" && recording.shape.pp > 1);
  const bool transfer = asked.name == "send" || asked.name == "receive";
  if (transfer && !between) {
    throw Error(
        "this step cannot become a program yet: ranks of axis " + axis +
            " send each other tensors one by one",
        "choose a layout of collectives alone: without attention around a ring"
    );
  }
  if (!(asked.input.defined() ? asked.input : asked.output).is_meta()) {
    return answer_on_host(asked);
  }
  if (between) {
    record_between_stages(asked, recording);
    return true;
  }
  const auto ranks = static_cast<int64_t>(asked.group.members.size());
  const std::string groups = groups_text(recording, axis, asked.group.members.size());
  Tensor result;
  if (asked.name == "all-reduce") {
    result = recorded_all_reduce(asked.input, groups, asked.reduce);
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

std::vector<std::vector<int64_t>>
ranks_of_stages(const MeshShape& shape, const std::string& order) {
  std::vector<std::vector<int64_t>> stages(static_cast<size_t>(shape.pp));
  for (const auto& line : mesh_groups(shape, MeshAxis::pp, order)) {
    for (size_t stage = 0; stage < stages.size(); ++stage) {
      stages[stage].push_back(line[stage]);
    }
  }
  for (auto& ranks : stages) {
    std::ranges::sort(ranks);
  }
  return stages;
}

size_t stage_of(const std::vector<std::vector<int64_t>>& stages, int64_t rank) {
  const auto own = std::ranges::find_if(stages, [rank](const auto& ranks) {
    return std::ranges::binary_search(ranks, rank);
  });
  return static_cast<size_t>(own - stages.begin());
}

Mesh recorded_mesh(
    const MeshShape& shape, int64_t rank, const std::string& order, StageTransfers& stages
) {
  define_collectives();
  const auto all = ranks_of_stages(shape, order);
  const Recording recording{shape, order, all[stage_of(all, rank)], stages};
  return alone(shape, rank, {.order = order, .compute = [recording](const SilentCollective& asked) {
                               return record_collective(asked, recording);
                             }});
}

} // namespace mh::program
