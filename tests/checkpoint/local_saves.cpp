// Checkpoints on the disks of nodes: nodes are threads here, and their disks folders of one memory, whose history
// has every moment at which all of them can be ended.

#include "core/checkpoint/local_saves.hpp"

#include "core/checkpoint/shared_read.hpp"
#include "core/mesh/agree.hpp"
#include "core/mesh/threads.hpp"
#include "core/storage/memory_storage.hpp"
#include "samples.hpp"
#include "tests/formats/refusal.hpp"

#include <doctest/doctest.h>

#include <cerrno>
#include <mutex>

using mh::LocalSaves;
using mh::MemoryStorage;
using mh::Slice;
using namespace mh::test;

namespace {

std::string disk(int64_t node) {
  return "/disk" + std::to_string(node);
}

/// The slices of a rank at a step: its own part of a matrix, and a vector that all hold.
std::vector<Slice> held(int64_t rank, int64_t ranks, int64_t step) {
  const auto start = static_cast<double>(1000 * step);
  return {
      part_of(whole("w", counting({12, 4}, start)), 0, rank, ranks),
      whole("b", counting({6}, start + 100, at::kBFloat16))};
}

struct Cluster {
  MemoryStorage store;
  int64_t nodes = 2, per_node = 1, copies = 1;
  std::string layout = "same";
  std::vector<std::string> said{};

  explicit Cluster(MemoryStorage::Objects objects = {})
      : store(std::move(objects)) {}

  void on_each(const std::function<void(const mh::Mesh& mesh, LocalSaves& saves)>& action) {
    mh::run_ranks({.dp = nodes * per_node}, [&](const mh::Mesh& mesh) {
      const mh::Ranks ranks = mh::ranks_of(mesh.all());
      const std::string machine = "machine " + std::to_string(mesh.rank() / per_node);
      mh::Nodes own = mh::nodes_of(ranks, machine, mesh.rank() % per_node);
      CHECK(own.node == mesh.rank() / per_node);
      LocalSaves::Terms terms{disk(own.node), copies, layout};
      LocalSaves saves(store, std::move(terms), std::move(own), ranks, ranks);
      saves.plan(held(mesh.rank(), mesh.world(), 0));
      action(mesh, saves);
    });
  }

  /// Why there is none; empty: it is saved.
  std::string save(int64_t step) {
    std::mutex mutex;
    std::string why;
    on_each([&](const mh::Mesh& mesh, LocalSaves& saves) {
      const auto slices = held(mesh.rank(), mesh.world(), step);
      saves.saves().begin({.step = step, .state = "{\"a\":1}", .slices = slices});
      const auto outcome = saves.saves().wait();
      const std::scoped_lock lock(mutex);
      why = outcome->error ? outcome->error->what() : why;
    });
    return why;
  }

  /// The step that all ranks find, and load as it was; -1: none.
  int64_t recover(int64_t newer_than = -1) {
    std::mutex mutex;
    std::vector<int64_t> found;
    on_each([&](const mh::Mesh& mesh, LocalSaves& saves) {
      const auto step = saves.recover(newer_than, [&](const std::string& text) {
        const std::scoped_lock lock(mutex);
        said.push_back(text);
      });
      bool same = true;
      if (step) {
        const auto expected = held(mesh.rank(), mesh.world(), *step);
        const auto slices = blank(expected);
        const auto saved = saves.open(*step);
        mh::read_together(*saved, slices, mh::ranks_of(mesh.all()), disk(saves.nodes().node));
        same = equal(slices, expected) && nlohmann::json::parse(saved->state())["a"] == 1;
      }
      const std::scoped_lock lock(mutex);
      CHECK(same);
      found.push_back(step.value_or(-1));
    });
    for (const int64_t one : found) {
      CHECK(one == found.front());
    }
    return found.front();
  }

  void lose(int64_t node) { store.remove_all(disk(node)); }
};

} // namespace

TEST_CASE("each node has what its ranks need, and the next one has a copy") {
  Cluster cluster;
  cluster.nodes = 3;
  cluster.per_node = 2;
  CHECK(cluster.save(10).empty());
  CHECK(cluster.save(20).empty());
  std::vector<std::string> names;
  for (const auto& item : cluster.store.list("/disk1")) {
    names.push_back(item.name);
  }
  CHECK(names == std::vector<std::string>{"node-00000", "node-00001"});
  CHECK(cluster.store.list("/disk1/node-00001/step-000000000010").empty()
  ); // the newest alone stays
  CHECK(cluster.recover() == 20);
  CHECK(cluster.recover(/*newer_than=*/20) == -1);
  CHECK(cluster.said.empty());
  for (int64_t node = 0; node < 3; ++node) {
    CAPTURE(node);
    Cluster lost(cluster.store.objects());
    lost.nodes = 3;
    lost.per_node = 2;
    lost.lose(node);
    CHECK(lost.recover() == 20);
    REQUIRE(lost.said.size() == 1);
    CHECK(contains(lost.said[0], "node " + std::to_string(node) + " has lost its local checkpoint")
    );
    CHECK(lost.save(30).empty()); // and is as before
    lost.lose((node + 1) % 3);
    CHECK(lost.recover() == 30);
    lost.lose(0);
    lost.lose(1);
    CHECK(lost.recover() == -1);
    CHECK(contains(lost.said.back(), " of 3 nodes: it is of no use"));
  }
}

TEST_CASE("with two copies two nodes may lose theirs, and a damaged part is taken from another") {
  Cluster cluster;
  cluster.nodes = 3;
  cluster.copies = 9; // as many as there are
  CHECK(cluster.save(10).empty());
  for (auto& [name, bytes] : cluster.store.objects()) {
    if (name.starts_with("/disk0/node-00000/") && name.ends_with(".safetensors")) {
      cluster.store.contents(name).back() ^= 1;
    }
  }
  cluster.lose(1);
  CHECK(cluster.recover() == 10);
  CHECK(cluster.said.size() == 2);
  CHECK(contains(
      cluster.said[0],
      "node 0 has lost its local checkpoint of step 10 and takes the copy of node 2"
  ));
  cluster.layout = "another";
  CHECK(cluster.recover() == -1);
}

TEST_CASE(
    "ended at any moment of a save, with all disks or one lost: the step before or the new one"
) {
  Cluster cluster;
  CHECK(cluster.save(10).empty());
  const size_t first = cluster.store.history().size() - 1;
  CHECK(cluster.save(20).empty());
  const auto history = cluster.store.history();
  CHECK(history.size() - first > 12);
  bool old = false;
  for (size_t count = first; count < history.size(); ++count) {
    for (int64_t lost = 0; lost <= 2; ++lost) {
      CAPTURE(count);
      CAPTURE(lost);
      Cluster next(history[count]);
      if (lost < 2) {
        next.lose(lost);
      }
      const int64_t step = next.recover();
      CHECK((step == 10 || step == 20));
      old = old || step == 10;
      CHECK(next.save(30).empty());
      CHECK(next.recover() == 30);
    }
  }
  CHECK(old);
}

TEST_CASE("a disk that fails at any call leaves the step before or the new one, on all ranks alike"
) {
  bool stopped = true;
  size_t failed = 0;
  for (size_t at = 1; stopped; ++at) {
    CAPTURE(at);
    Cluster cluster;
    CHECK(cluster.save(10).empty());
    cluster.store.fault = MemoryStorage::Fault{cluster.store.calls + at, EIO, true};
    const std::string why = cluster.save(20);
    stopped = cluster.store.calls >= cluster.store.fault->at;
    cluster.store.fault.reset();
    failed += why.empty() ? 0 : 1;
    const int64_t step = cluster.recover();
    CHECK((step == 20 || (step == 10 && !why.empty())));
    CHECK(cluster.save(30).empty());
    CHECK(cluster.recover() == 30);
  }
  CHECK(failed > 5);
}

TEST_CASE("nodes are machines, or processes of one machine whose local ranks come again") {
  const auto nodes_by = [](const std::vector<std::pair<std::string, int64_t>>& places) {
    std::vector<std::string> texts;
    for (const auto& [machine, local] : places) {
      texts.push_back(nlohmann::json{machine, local}.dump());
    }
    const mh::Ranks ranks{1, [texts](const std::string&) { return texts; }};
    return mh::nodes_of(ranks, places[1].first, places[1].second);
  };
  using Ranks = std::vector<std::vector<int64_t>>;
  CHECK(nodes_by({{"a", 0}, {"a", 1}}).ranks == Ranks{{0, 1}});
  CHECK(nodes_by({{"a", 0}, {"b", 0}, {"a", 1}, {"b", 1}}).ranks == Ranks{{0, 2}, {1, 3}});
  CHECK(nodes_by({{"a", 0}, {"a", 1}, {"a", 0}, {"a", 1}}).ranks == Ranks{{0, 1}, {2, 3}});
  CHECK(nodes_by({{"a", 0}, {"a", 1}}).index == 1);
}
