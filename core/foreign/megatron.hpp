#pragma once
/// Checkpoints of Megatron-LM: `torch_dist`, and those of a file for each rank, of the days before
/// and of NeuronX (`xser`). Tensors have the names of `Architecture::megatron()`.
///
///     iter_0000100/.metadata, metadata.json, common.pt, __0_0.distcp    torch_dist
///     iter_0000100/mp_rank_00_001/model_optim_rng.pt                    mp_rank
///
/// Source:  Megatron-LM, megatron/training/checkpointing.py; megatron-core 0.16.1,
///          dist_checkpointing

#include "core/checkpoint/outlined.hpp"
#include "core/foreign/iteration_format.hpp"
#include "megahost/architecture.hpp"
#include "megahost/schema.hpp"

#include <nlohmann/json.hpp>

#include <memory>
#include <string>

namespace mh {

class TorchDistFormat final : public IterationFormat {
public:
  struct Config {};

  static void fields(Fields<Config>&) {}

  TorchDistFormat(const Config&, const Args& args)
      : IterationFormat(args.storage) {}

  [[nodiscard]] std::string about() const override {
    return "torch_dist checkpoint of Megatron-LM";
  }

  [[nodiscard]] std::string mark() const override { return "metadata.json"; }

protected:
  [[nodiscard]] bool is_whole(const Path& folder) const override;
  [[nodiscard]] std::string lacking(const Path& folder) const override;
  [[nodiscard]] std::unique_ptr<CheckpointReader> read(const Path& folder) const override;
};

class MpRankFormat final : public IterationFormat {
public:
  struct Config {};

  static void fields(Fields<Config>&) {}

  MpRankFormat(const Config&, const Args& args)
      : IterationFormat(args.storage) {}

  [[nodiscard]] std::string about() const override {
    return "Megatron-LM checkpoint of a file for each rank";
  }

  [[nodiscard]] std::string mark() const override { return "mp_rank_00/model_optim_rng.pt"; }

protected:
  [[nodiscard]] bool is_whole(const Path& folder) const override;
  [[nodiscard]] std::unique_ptr<CheckpointReader> read(const Path& folder) const override;
};

/// One checkpoint of torch_dist. Stacked layers and experts are tensors by themselves.
///
/// Throws:  mh::Error (exit code 5) naming the file and the tensor
[[nodiscard]] std::unique_ptr<CheckpointReader>
open_torch_dist(Storage& storage, const Path& folder);

/// One checkpoint of files of ranks, joined to whole tensors.
///
/// Throws:  mh::Error (exit code 5) naming the file and the tensor: a rank's file is not there, or
///          has tensors of other shapes than the others'
[[nodiscard]] std::unique_ptr<CheckpointReader> open_mp_rank(Storage& storage, const Path& folder);

/// Writes `folder`/iter_0000100, `common.pt` first and `metadata.json` last of it, and `latest_checkpointed_iteration.txt`. One tensor of ours is in
/// memory at a time.
///
/// tensors:  names are those of `Architecture::megatron()`; "optimizer.exp_avg.NAME" is a moment of
///           NAME, and "optimizer.master.NAME" its master. A weight with moments and without a
///           master is its own. They get the names of `fully_reshardable` and of optimizers that
///           are not distributed, which have the same tensors
/// common:   what the run says in addition to its iteration; "args" becomes a Namespace, keys of
///           digits become numbers
/// Returns:  bytes of the tensors
uint64_t write_torch_dist(
    Storage& storage,
    const Path& folder,
    int64_t iteration,
    const OutlinedTensors& tensors,
    const nlohmann::ordered_json& common = nlohmann::ordered_json::object()
);

} // namespace mh
