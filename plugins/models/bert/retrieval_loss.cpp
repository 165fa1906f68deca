#include "retrieval_loss.hpp"

#include <megahost/checking.hpp>
#include <megahost/mesh.hpp>
#include <megahost/placement.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>

#include <limits>
#include <string>

namespace mh::bert {
namespace {

constexpr Along kOfSamples{PlacementType::split, 0};

/// [batch, dim], after the tokens are gone.
Placement of_samples() {
  Placement placed;
  placed[MeshAxis::dp] = kOfSamples;
  placed[MeshAxis::cp] = {PlacementType::replicated, 0};
  return placed;
}

/// Each row of a [contexts, batch] array after the other, of all data-parallel ranks: those of a
/// rank follow one another.
at::Tensor of_all_ranks(const at::Tensor& array, const Mesh& mesh) {
  const at::Tensor own = array.reshape({-1}).contiguous();
  const Group& ranks = mesh.group(MeshAxis::dp);
  return ranks.size() == 1 ? own : ranks.all_gather(own, 0);
}

} // namespace

at::Tensor first_tokens(const at::Tensor& x, Axis last, StepContext& context) {
  const Placement placed = context.place(last);
  const Placement of_tokens = context.place(last, Tier::tokens);
  at::Tensor index = context.token_index();
  Placement made = of_samples();
  for (const auto axis : kAllMeshAxes) {
    if (placed[axis] != Along{PlacementType::split, 0}) {
      continue;
    }
    made[axis] = {PlacementType::partial, 0};
    if (of_tokens[axis].type != PlacementType::split) { // split once more between layers
      index = context.mesh().group(axis).slice(index, 0);
    }
  }
  const at::Tensor first = index.eq(0).to(x.scalar_type()).view({-1, 1, 1});
  const at::Tensor rows = convert((x * first).sum(0), made, of_samples(), context.mesh());
  return checked(rows, of_samples(), "head", "first tokens", context);
}

void add_retrieval_losses(
    const at::Tensor& queries,
    const std::vector<at::Tensor>& contexts,
    const RetrievalSpec& spec,
    StepContext& context
) {
  const Mesh& mesh = context.mesh();
  Placement everywhere = of_samples();
  everywhere[MeshAxis::dp] = {PlacementType::replicated, 0};
  const at::Tensor all = convert(at::cat(contexts), of_samples(), everywhere, mesh); // [C, D]
  const auto wide = all.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor scores = at::matmul(queries.to(wide), all.to(wide).t()) * spec.scale; // [B, C]

  const at::Tensor& labels = context.array("labels");
  const at::Tensor& pairs = context.array("pair_mask");
  const at::Tensor there =
      contexts.size() == 1 ? pairs : at::cat({pairs, context.array("negative_mask") * pairs});
  const int64_t batch = queries.size(0);
  const int64_t first = mesh.coordinate(MeshAxis::dp) * batch * std::ssize(contexts);
  const at::Tensor place = at::arange(first, first + batch, labels.options()).unsqueeze(1);
  const at::Tensor others =
      at::arange(scores.size(1), labels.options()).unsqueeze(0).ne(place); // [B, C]
  const at::Tensor no_negative =
      of_all_ranks(there, mesh)
          .eq(0)
          .unsqueeze(0)
          .logical_or(of_all_ranks(labels, mesh).unsqueeze(0).eq(labels[0].unsqueeze(1)));
  const at::Tensor left =
      scores.masked_fill(no_negative.logical_and(others), -std::numeric_limits<double>::infinity());
  const at::Tensor own = at::log_softmax(left, 1).gather(1, place).squeeze(1);
  const at::Tensor counted = pairs[0].to(wide);
  context.add_loss(
      {.name = "retrieval loss", .sum = (own * counted).sum().neg(), .over = "pair_mask"}
  );
  const at::Tensor known = left.detach();
  const at::Tensor better = // others with a score as high: where all are alike, nothing is found
      known.ge(known.gather(1, place)).logical_and(others).sum(1);
  for (const int64_t most : spec.report_top) {
    context.add_loss(
        {.name = "top-" + std::to_string(most) + " accuracy",
         .sum = (better.lt(most) * counted).sum(),
         .over = "pair_mask",
         .weight = 0}
    );
  }
}

} // namespace mh::bert
