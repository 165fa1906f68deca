// Collectives between ranks, which are the replicas of a module.

#include "core/program/collectives.hpp"

#include "core/program/stablehlo/lowering.hpp"

#include <algorithm>

namespace mh::program::stablehlo {

namespace {

/// "replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>". Without a channel: replicas talk.
std::string groups_of(const Call& c) {
  const std::string& groups = c.argument(1).toStringRef();
  const auto count = std::count(groups.begin(), groups.end(), '[') - 1;
  const auto ranks = std::count(groups.begin(), groups.end(), ',') + 1;
  return "replica_groups = dense<" + groups + "> : tensor<" + std::to_string(count) + "x" +
         std::to_string(ranks / count) + "xi64>";
}

std::string operation(const std::string& reduce) {
  return reduce == "sum" ? "add" : reduce == "max" ? "maximum" : "minimum";
}

void all_reduce(const Call& c) {
  const TypedValue x = c.tensor(0);
  c.set_result(
      c.w.collective("all_reduce", x, x.sizes, groups_of(c), operation(c.argument(2).toStringRef()))
  );
}

void all_gather(const Call& c) {
  c.set_result(c.w.collective(
      "all_gather", c.tensor(0), c.result().sizes, "all_gather_dim = 0 : i64, " + groups_of(c), ""
  ));
}

void reduce_scatter(const Call& c) {
  c.set_result(c.w.collective(
      "reduce_scatter",
      c.tensor(0),
      c.result().sizes,
      "scatter_dimension = 0 : i64, " + groups_of(c),
      operation(c.argument(2).toStringRef())
  ));
}

void all_to_all(const Call& c) {
  c.set_result(c.w.collective(
      "all_to_all",
      c.tensor(0),
      c.result().sizes,
      "split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = " +
          std::to_string(c.integer(2)) + " : i64, " + groups_of(c),
      ""
  ));
}

} // namespace

std::span<const Lowering> collective_lowerings() {
  static constexpr Lowering kRows[] = {
      {collective::kAllGather, all_gather},
      {collective::kAllReduce, all_reduce},
      {collective::kAllToAll, all_to_all},
      {collective::kReduceScatter, reduce_scatter},
  };
  return kRows;
}

} // namespace mh::program::stablehlo
