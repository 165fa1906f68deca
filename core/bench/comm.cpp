/// Bandwidth and latency of the collectives along each axis of a mesh.

#include "core/base/seconds.hpp"
#include "core/bench/bench.hpp"
#include "core/mesh/silent.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <utility>

namespace mh {

namespace {

/// An exchange between ranks: a tensor `x`, and room for a result as large.
struct BenchExchange {
  const char* name;
  double
      traffic; ///< bytes that cross a rank's link, for n ranks: traffic * (n - 1) / n of the size
  std::function<void(const Group&, const at::Tensor& x, const at::Tensor& room)> run;
};

at::Tensor part(const at::Tensor& x, const Group& group) {
  return x.narrow(0, 0, x.size(0) / group.size());
}

/// Exchanges of a tensor that is `x` as a whole: what is gathered or scattered is as large.
const std::vector<BenchExchange>& exchanges() {
  using at::Tensor;
  static const std::vector<BenchExchange> all{
      {"all-reduce",
       2,
       [](const Group& group, const Tensor& x, const Tensor&) { group.all_reduce(x); }},
      {"all-gather",
       1,
       [](const Group& group, const Tensor& x, const Tensor& room) {
         (void)group.start_all_gather(part(x, group), 0, room).wait();
       }},
      {"reduce-scatter",
       1,
       [](const Group& group, const Tensor& x, const Tensor& room) {
         (void)group.start_reduce_scatter(x, 0, part(room, group)).wait();
       }},
      {"all-to-all", 1, [](const Group& group, const Tensor& x, const Tensor&) {
         (void)group.all_to_all(x, 0, 0);
       }}};
  return all;
}

/// The transfers of pipeline stages: each sends to the next one.
const std::vector<BenchExchange>& transfers() {
  static const std::vector<BenchExchange> all{
      {"send to next", 0, [](const Group& group, const at::Tensor& x, const at::Tensor& room) {
         const int64_t n = group.size();
         const int64_t next = (group.index() + 1) % n, before = (group.index() + n - 1) % n;
         const bool sends_first = group.index() % 2 == 0; // the neighbours receive first
         Pending sent = sends_first ? group.send(x, next) : Pending();
         Pending arrival = group.receive(room, before);
         sent = sends_first ? std::move(sent) : group.send(x, next);
         (void)arrival.wait();
         (void)sent.wait();
       }}};
  return all;
}

/// Seconds of one exchange, the shortest of three rounds of many.
double time_of(
    const BenchExchange& exchange,
    const Group& group,
    const at::Tensor& x,
    const std::function<void()>& finish
) {
  const at::Tensor room = at::empty_like(x);
  constexpr int64_t kBytes = 64 << 20; // bytes of a round
  const auto bytes = static_cast<int64_t>(x.nbytes());
  const int64_t times = std::clamp<int64_t>(kBytes / bytes, 4, 200);
  double best = 1e9;
  for (int round = 0; round < 4; ++round) { // the first one warms up
    const auto start = Clock::now();
    for (int64_t i = 0; i < times; ++i) {
      exchange.run(group, x, room);
    }
    finish();
    const double seconds = seconds_since(start);
    best = round > 0 ? std::min(best, seconds / static_cast<double>(times)) : best;
  }
  return best;
}

} // namespace

BenchTable bench_comm(const Mesh& mesh, const Device& device) {
  const at::NoGradGuard no_grad;
  BenchTable table{
      .title = "collectives of float32 tensors among " + std::to_string(mesh.world()) + " ranks",
      .columns =
          {{"axis", "axis"},
           {"ranks", "ranks"},
           {"operation", "operation"},
           {"kilobytes", "kB"},
           {"microseconds", "us", 1},
           {"gb_per_s", "GB/s", 3},
           {"own_microseconds", "our layer, us", 2}},
      .rows = {},
      .note =
          "kB: of the whole tensor; GB/s: of what crosses each rank's link. Our layer: the time "
          "of the same calls over a transport that does nothing."};
  const Mesh silent = alone(mesh.shape(), mesh.rank(), {.answers = false});
  const bool experts = mesh.shape().ep > 1 || mesh.shape().etp > 1;
  for (const auto axis : kAllMeshAxes) {
    const bool of_experts = axis == MeshAxis::edp || axis == MeshAxis::ep || axis == MeshAxis::etp;
    const auto ranks = mesh.size(axis);
    if (ranks == 1 || (of_experts && !experts)) {
      continue;
    }
    for (const auto& exchange : axis == MeshAxis::pp ? transfers() : exchanges()) {
      for (const int64_t kibibytes : {4, 64, 1024, 16384}) {
        const int64_t elements = (kibibytes * 256 + ranks - 1) / ranks * ranks;
        const auto x = at::ones({elements}, at::TensorOptions().device(device.device()));
        const auto finish = [&] { device.synchronize(); };
        const double seconds = time_of(exchange, mesh.group(axis), x, finish);
        const double own = time_of(exchange, silent.group(axis), x, finish);
        const auto n = static_cast<double>(ranks);
        const double share = exchange.traffic > 0 ? exchange.traffic * (n - 1) / n : 1;
        const auto bytes = static_cast<double>(x.nbytes());
        table.rows.push_back(
            {{"axis", to_string(axis)},
             {"ranks", ranks},
             {"operation", exchange.name},
             {"kilobytes", bytes / 1e3},
             {"microseconds", 1e6 * seconds},
             {"gb_per_s", share * bytes / seconds / 1e9},
             {"own_microseconds", 1e6 * own}}
        );
      }
    }
  }
  return table;
}

} // namespace mh
