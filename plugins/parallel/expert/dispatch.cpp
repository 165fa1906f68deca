#include "dispatch.hpp"

#include <megahost/context.hpp>
#include <megahost/nn/expert_kernel.hpp>
#include <megahost/placement.hpp>
#include <megahost/saved.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

namespace expert_parallel {

namespace {

using at::Tensor;
using mh::MeshAxis;
using mh::PlacementType;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Counts = std::vector<int64_t>;

mh::Placement over_experts(PlacementType type) {
  mh::Placement placement;
  placement[MeshAxis::ep] = {type, 0};
  placement[MeshAxis::etp] = {type, 0};
  return placement;
}

/// Rows for an expert of one pass: `pad` of each microbatch that has tokens on these ranks.
int64_t padded_rows(int64_t pad, const mh::Mesh& mesh) {
  const int64_t sharing = mesh.size(MeshAxis::ep) * mesh.size(MeshAxis::etp);
  const int64_t of_one = mesh.size(MeshAxis::tp) * mesh.size(MeshAxis::cp);
  return pad * std::max<int64_t>(1, sharing / of_one);
}

class AllGatherDispatch : public mh::ExpertMethod {
public:
  Tensor mixed(
      const Tensor& x,
      const mh::Routing& routing,
      int64_t pad,
      const mh::Experts& experts,
      mh::StepContext& context
  ) const override {
    const auto& mesh = context.mesh();
    const auto apart = over_experts(PlacementType::split),
               together = over_experts(PlacementType::replicated);
    const mh::Routing all{
        mh::convert_forward(routing.choices, apart, together, mesh),
        mh::convert(routing.weights, apart, together, mesh),
        routing.capacity};
    const Tensor tokens = mh::convert(x, apart, together, mesh);
    const Tensor sums = experts.mixed(tokens, all, padded_rows(pad, mesh), context);
    return mh::convert(sums, over_experts(PlacementType::partial), apart, mesh);
  }
};

/// All-to-all of uneven slices, and back.
struct Exchange : torch::autograd::Function<Exchange> {
  struct Saved {
    Counts send, receive;
    const mh::Group* group;
  };

  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Saved& way) {
    mh::save(ctx, way);
    const Tensor y = way.group->all_to_all_rows(x, way.send, way.receive);
    return y.is_same(x) ? x.view_as(x) : y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto& way = mh::get_saved<Saved>(ctx);
    return {way.group->all_to_all_rows(gradients[0], way.receive, way.send), Tensor()};
  }
};

Tensor
exchange(const Tensor& x, const Counts& send, const Counts& receive, const mh::Group& group) {
  return group.size() == 1 ? x : Exchange::apply(x, Exchange::Saved{send, receive, &group});
}

int64_t sum(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

/// How many rows go where, on the host.
struct DispatchSizes {
  Counts chosen;  ///< by expert, of this rank's tokens
  Counts arrived; ///< by rank of etp, rank of ep and expert of this rank
};

class AllToAllDispatch : public mh::ExpertMethod {
public:
  Tensor mixed(
      const Tensor& x,
      const mh::Routing& routing,
      int64_t pad,
      const mh::Experts& experts,
      mh::StepContext& context
  ) const override {
    const auto& ep = context.mesh().group(MeshAxis::ep);
    const auto& etp = context.mesh().group(MeshAxis::etp);
    const auto [slots, ends] = mh::ops::expert_slots(routing.choices, 0, experts.count(), 0);
    const DispatchSizes sizes = exchange_sizes(ends, routing, experts, context);
    const int64_t local = experts.local();

    // Over ep: each rank's experts are neighbours among the slots.
    const Counts to = blocks(sizes.chosen, local);
    const Counts per_rank = blocks(sizes.arrived, local); // by etp and ep
    const auto own = per_rank.begin() + etp.index() * ep.size();
    const Counts from(own, own + ep.size());
    const Tensor rows = mh::ops::to_slots(x, slots, sum(to));
    const Tensor mine = exchange(rows, to, from, ep);

    // Over etp: all ranks that share an expert see the rows of all.
    const Counts whole = blocks(per_rank, ep.size());
    const Counts same(static_cast<size_t>(etp.size()), sum(from));
    const Tensor all = exchange(repeated(mine, etp.size()), same, whole, etp);

    const auto [order, groups] = by_expert(sizes.arrived, local, padded_rows(pad, context.mesh()));
    const Tensor places = order.to(x.device());
    const Tensor sorted = mh::ops::to_slots(all, places, groups.back());
    const Tensor made =
        mh::ops::from_slots(experts.forward(sorted, groups, context), places, Tensor());

    Tensor sums = exchange(made, whole, same, etp);
    if (etp.size() > 1) {
      sums = sums.view({etp.size(), -1, sums.size(1)}).sum(0);
    }
    return mh::ops::from_slots(exchange(sums, from, to, ep), slots, routing.weights);
  }

private:
  static Tensor repeated(const Tensor& x, int64_t times) {
    return times == 1 ? x : x.unsqueeze(0).expand({times, -1, -1}).reshape({-1, x.size(1)});
  }

  /// Sums of `width` neighbours.
  static Counts blocks(const Counts& counts, int64_t width) {
    Counts sums;
    for (auto i = counts.begin(); i != counts.end(); i += width) {
      sums.push_back(std::accumulate(i, i + width, int64_t{0}));
    }
    return sums;
  }

  static DispatchSizes exchange_sizes(
      const Tensor& ends,
      const mh::Routing& routing,
      const mh::Experts& experts,
      const mh::StepContext& context
  ) {
    const auto& mesh = context.mesh();
    const int64_t number = experts.count();
    const Tensor chosen = ends.narrow(0, 1, number) - ends.narrow(0, 0, number);
    const Tensor from_ep =
        mesh.group(MeshAxis::ep).all_to_all(chosen.view({-1, experts.local()}), 0, 0);
    const Tensor arrived = mesh.group(MeshAxis::etp).all_gather(from_ep.reshape({-1}), 0);
    const Counts host =
        context.host_values(at::cat({chosen, arrived}), assumed(routing, experts, context));
    return {{host.begin(), host.begin() + number}, {host.begin() + number, host.end()}};
  }

  /// Every rank chooses experts evenly; this one is the busiest.
  static Counts
  assumed(const mh::Routing& routing, const mh::Experts& experts, const mh::StepContext& context) {
    const auto spread = [](int64_t rows, int64_t experts) {
      const Counts ends = mh::even_ends(rows, experts);
      Counts counts;
      for (size_t e = 1; e < ends.size(); ++e) {
        counts.push_back(ends[e] - ends[e - 1]);
      }
      return counts;
    };
    const auto& mesh = context.mesh();
    const int64_t rows = routing.choices.numel();
    Counts all = spread(rows, experts.count());
    const int64_t ranks = mesh.size(MeshAxis::ep) * mesh.size(MeshAxis::etp);
    const double share = static_cast<double>(rows * experts.local()) /
                         static_cast<double>(experts.count()) * context.mode().imbalance;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const Counts part = spread(static_cast<int64_t>(std::ceil(share)), experts.local());
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  /// The slot of each row that arrived (by rank, then by expert) when rows are sorted by expert,
  /// and where each expert's begin; each has `pad` rows where that is above 0.
  static std::pair<Tensor, Counts> by_expert(const Counts& arrived, int64_t local, int64_t pad) {
    Counts ends(static_cast<size_t>(local) + 1, 0);
    for (size_t i = 0; i < arrived.size(); ++i) {
      ends[i % static_cast<size_t>(local) + 1] += arrived[i];
    }
    for (size_t e = 1; e < ends.size(); ++e) {
      ends[e] = ends[e - 1] + (pad > 0 ? pad : ends[e]);
    }
    Tensor order = at::empty({sum(arrived), 1}, at::kLong);
    auto* slot = order.mutable_data_ptr<int64_t>();
    Counts next(ends.begin(), ends.end() - 1);
    for (size_t i = 0; i < arrived.size(); ++i) {
      for (int64_t row = 0; row < arrived[i]; ++row) {
        *slot++ = next[i % static_cast<size_t>(local)]++;
      }
    }
    return {order, ends};
  }
};

} // namespace

std::unique_ptr<const mh::ExpertMethod> make_all_gather() {
  return std::make_unique<AllGatherDispatch>();
}

std::unique_ptr<const mh::ExpertMethod> make_all_to_all() {
  return std::make_unique<AllToAllDispatch>();
}

} // namespace expert_parallel
