#pragma once
/// The state of a run in another program's checkpoint: master weights, the optimizer's state, the step
/// and the samples; and the tensors of ours that it fills.

#include "core/checkpoint/mapped_slices.hpp"
#include "core/session/session.hpp"
#include "core/step/weights.hpp"
#include "core/train/checkpointing.hpp"
#include "megahost/checkpoint_format.hpp"

#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace mh {

struct GivenWeights;

/// The tensors that a rank's run stores, by name, as destinations of what is read. Weights on the Meta
/// device get tensors of their own there, by which `by_tensor` knows the slices that fill them.
class StoredParts {
public:
  /// The words "exp_avg" of "optimizer.exp_avg.NAME"; `kMaster` is the weights themselves.
  static constexpr const char* kMaster = "master";

  /// Weights and store outlive the object.
  StoredParts(const Weights& weights, ParameterStore& store);

  /// States that the optimizer has, without the masters.
  [[nodiscard]] const std::set<std::string>& states() const { return states_; }

  /// The destinations of a state by the parameters' names. A parameter of which this rank stores
  /// nothing has a part without elements.
  [[nodiscard]] OwnParts parts(const std::string& state) const;

  [[nodiscard]] bool has(const std::string& state, const std::string& name) const;

  /// The destination of "optimizer.exp_avg.NAME", or of a weight.
  [[nodiscard]] const at::Tensor& value(const std::string& stored) const;

  /// Slices by the tensor on the Meta device that they fill; those that fill others are left out.
  [[nodiscard]] std::map<std::string, MappedSlices> by_tensor(const MappedSlices& slices) const;

private:
  [[nodiscard]] OwnPart empty_part(const std::string& name) const;

  ParameterStore& store_;
  std::map<std::string, OwnPart> all_;
  std::map<const void*, std::string> of_storage_; // Meta tensors' names
  std::set<std::string> states_;
  mutable std::deque<Piece> empty_; // pieces of parts without elements
};

/// Adds slices of all that the checkpoint has of these weights' state, under "optimizer.STATE.NAME". A
/// state that it has for one tensor it must have for all.
///
/// Returns: the states that it has
/// Throws:  mh::Error (exit code 5) naming the tensor that is missing
[[nodiscard]] std::set<std::string> add_state_slices(
    const CheckpointReader& saved,
    const std::vector<HfTensor>& maps,
    const StoredParts& stored,
    MappedSlices& ret_slices
);

/// The progress of a run of this session at the iteration and with the samples that another program
/// says of the weights, 0 where it says none.
[[nodiscard]] Progress
foreign_progress(const Session& session, const GivenWeights& given, Host& host);

} // namespace mh
