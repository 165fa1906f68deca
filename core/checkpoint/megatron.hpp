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
#include "megahost/architecture.hpp"
#include "megahost/checkpoint_format.hpp"
#include "megahost/schema.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mh {

/// A folder of one checkpoint, or one with a folder for each iteration that is whole.
class IterationFormat : public CheckpointFormat {
public:
  explicit IterationFormat(Storage& storage)
      : storage_(storage) {}

  [[nodiscard]] bool detect(const Path& folder) const override;
  [[nodiscard]] std::optional<std::vector<int64_t>> steps(const Path& folder) const override;
  [[nodiscard]] std::unique_ptr<CheckpointReader>
  open(const Path& folder, std::optional<int64_t> step) const override;

protected:
  [[nodiscard]] virtual bool is_whole(const Path& folder) const = 0;
  [[nodiscard]] virtual std::unique_ptr<CheckpointReader> read(const Path& folder) const = 0;

  [[nodiscard]] Storage& storage() const { return storage_; }

private:
  [[nodiscard]] std::vector<int64_t> iterations(const Path& folder) const;

  Storage& storage_;
};

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

/// Writes `folder`/iter_0000100 and `latest_checkpointed_iteration.txt`: weights that Megatron-LM
/// loads with `--finetune`. One tensor of ours is in memory at a time.
///
/// tensors:  names are those of `Architecture::megatron()`
/// Returns:  bytes of the tensors
uint64_t write_torch_dist(
    Storage& storage, const Path& folder, int64_t iteration, const OutlinedTensors& tensors
);

} // namespace mh
