#pragma once
/// Frequent checkpoints on disks of the nodes themselves, or in their memory: each node keeps what
/// its own ranks need, and copies of other nodes' parts. A step can be loaded if every node's part is
/// whole on some node; a node that has lost its own is given the copy.
///
///     FOLDER/node-00000/step-000000000010/   part of node 0, with a manifest of its own
///     FOLDER/node-00003/step-000000000010/   copy of node 3's part, the same bytes
///
/// Source:  GEMINI (SOSP 2023), placement of copies in a ring; Megatron-LM,
///          --non-persistent-ckpt-type local

#include "core/checkpoint/background.hpp"
#include "megahost/checkpoint_format.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mh {

/// The ranks of a run by node, and this rank's place.
struct Nodes {
  std::vector<std::vector<int64_t>>
      ranks;         ///< by node, ascending; nodes in the order of their first
  int64_t node = 0;  ///< this rank's
  int64_t index = 0; ///< this rank's among its node's

  [[nodiscard]] int64_t count() const { return std::ssize(ranks); }

  [[nodiscard]] bool leads() const { return index == 0; }

  /// This node's ranks: what they show one another all ranks do, at the same time.
  [[nodiscard]] Ranks own(const Ranks& all) const;
};

/// Nodes are machines; processes of one machine that have the same local rank are on several, as
/// where a cluster is tried on one machine.
///
/// Ranks:   all
[[nodiscard]] Nodes nodes_of(const Ranks& ranks, const std::string& machine, int64_t local_rank);

class LocalSaves {
public:
  struct Terms {
    Path folder;        ///< folder of this run, on a disk or in memory of the node
    int64_t copies = 1; ///< other nodes that have each node's part; at most all others
    std::string layout; ///< a checkpoint is recovered by ranks of the same layout
  };

  /// `ranks`:    those that train
  /// `meeting`:  the same ranks, for the thread that writes
  LocalSaves(Storage& storage, Terms terms, Nodes nodes, Ranks ranks, Ranks meeting);

  [[nodiscard]] const Nodes& nodes() const { return nodes_; }

  [[nodiscard]] int64_t copies() const { return terms_.copies; }

  [[nodiscard]] const Path& folder() const { return terms_.folder; }

  /// Decides which slices this rank writes, and whose copies it keeps.
  ///
  /// Ranks:   all
  void plan(std::span<const Slice> slices);

  /// The saves that `plan` has prepared: a copy in host memory, of which other nodes get theirs, is
  /// written next to the training.
  [[nodiscard]] BackgroundSaves& saves() { return *saves_; }

  /// Bytes of this rank's copy and of those that it keeps for others, from the first save on.
  [[nodiscard]] int64_t bytes() const;

  /// Finds the newest step of which every node's part is whole on some node, and gives each node that
  /// lacks its own a copy. `newer_than`: an older one is of no use. `say` gets sentences on rank 0.
  ///
  /// Throws:  mh::Error, the same on every rank
  /// Ranks:   all
  [[nodiscard]] std::optional<int64_t>
  recover(int64_t newer_than, const std::function<void(const std::string&)>& say);

  /// Opens this node's part of a step, which holds all slices that its ranks had.
  [[nodiscard]] std::unique_ptr<CheckpointReader> open(int64_t step) const;

  /// Removes all that this node keeps of the run.
  void clear();

private:
  /// A rank's slices, in the order in which they are written.
  struct Part {
    int64_t owner = 0;
    std::vector<Slice> slices;
  };

  [[nodiscard]] Path place(int64_t node) const;
  [[nodiscard]] std::vector<int64_t> kept_nodes() const;
  [[nodiscard]] std::vector<int64_t> holders(int64_t rank) const;
  void exchange(std::vector<Slice>& ret_copies);
  void write(const CheckpointContents& contents, const Ranks& ranks) const;
  [[nodiscard]] std::string whole_steps() const;
  void give(int64_t step, int64_t node, int64_t donor);

  Storage& storage_;
  Terms terms_;
  Nodes nodes_;
  Ranks ranks_;
  std::vector<Part> others_; // copies of other ranks' slices
  std::unique_ptr<BackgroundSaves> saves_;
};

} // namespace mh
