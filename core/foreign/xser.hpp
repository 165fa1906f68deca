#pragma once
/// Checkpoints of NeuronX Distributed: a file of each tensor- and pipeline-parallel rank, under
/// Hugging Face's names of Llama's tensors. With `use_xser` a rank's tensors are files of their own.
///
///     step_100/model/dp_rank_00_tp_rank_00_pp_rank_00.pt                    names and numbers
///     step_100/model/dp_rank_00_tp_rank_00_pp_rank_00.pt.info.pt            their dtypes and shapes
///     step_100/model/dp_rank_00_tp_rank_00_pp_rank_00.pt.tensors/tensor_0.pt
///     step_100/checkpoint, step_100/done                                    the last one when whole
///
/// Source:  neuronx-distributed of Neuron 2.29, trainer/checkpoint.py, scripts/checkpoint_converter.py;
///          torch_xla, utils/serialization.py

#include "core/checkpoint/outlined.hpp"
#include "core/foreign/iteration_format.hpp"
#include "megahost/schema.hpp"

#include <memory>
#include <optional>
#include <string>

namespace mh {

class XserFormat final : public IterationFormat {
public:
  struct Config {};

  static void fields(Fields<Config>&) {}

  XserFormat(const Config&, const Args& args)
      : IterationFormat(args.storage) {}

  [[nodiscard]] std::string about() const override { return "NeuronX Distributed checkpoint"; }

  [[nodiscard]] std::string mark() const override {
    return "model/dp_rank_00_tp_rank_00_pp_rank_00.pt";
  }

  [[nodiscard]] std::optional<std::string> config(const Path& folder) const override;

protected:
  [[nodiscard]] bool is_whole(const Path& folder) const override;
  [[nodiscard]] std::string lacking(const Path& folder) const override;
  [[nodiscard]] std::unique_ptr<CheckpointReader> read(const Path& folder) const override;
  [[nodiscard]] std::string folder_name(int64_t step) const override;
};

/// One checkpoint: tensor-parallel parts joined, joined projections taken apart.
///
/// Throws:  mh::Error (exit code 5) naming the file and the tensor: a rank's file is not there, or
///          has tensors of other shapes than the others'; experts; a projection that cannot be
///          taken apart
[[nodiscard]] std::unique_ptr<CheckpointReader> open_xser(Storage& storage, const Path& folder);

/// The ranks that a checkpoint is written for.
struct XserLayout {
  int64_t tensor = 1, pipeline = 1;
  int64_t writers = 1; ///< tensor-parallel ranks whose files are written at the same time
};

/// Writes `folder`/step_100, `done` last. One tensor of theirs is read at a time, split, and
/// written as a file of each rank, `writers` of them at a time.
///
/// tensors:  names are Hugging Face's; a tied embedding is written as `lm_head.weight`, too
/// config:   text of the model's config.json
/// Returns:  bytes of the tensors
/// Throws:   mh::Error (exit code 5): a tensor that is none of Llama's, or that so many ranks cannot
///           split; fewer layers than stages
uint64_t write_xser(
    Storage& storage,
    const Path& folder,
    int64_t step,
    const OutlinedTensors& tensors,
    const XserLayout& layout,
    const std::string& config
);

} // namespace mh
