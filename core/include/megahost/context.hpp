#pragma once
/// The context of a microbatch, which every block can rely on while it passes: its tokens'
/// positions, documents, mask and identities, the mesh, the losses it collects. It reaches every
/// pipeline stage next to the activations, never through them, so packed documents, padding and
/// context parallelism change no model.

#include "megahost/export.hpp"
#include "megahost/mesh.hpp"
#include "megahost/placement.hpp"
#include "megahost/recompute.hpp"
#include "megahost/sequence.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

/// The arrays of one microbatch on the run's device, already cut to this rank's tokens.
///
/// Shapes:  every array [seq, batch] (int64 or float32) unless the corpus says otherwise
struct Batch {
  std::map<std::string, at::Tensor, std::less<>> arrays{}; ///< "tokens", "labels", "loss_mask", ...
  std::vector<int64_t> samples{}; ///< global number of each sample: identity under every layout
  int64_t seq = 0;                ///< global tokens per sample
  int64_t batch = 0;              ///< global samples of the microbatch, over all data ranks
  Sequences sequences{};          ///< global tokens per sample of other sequences
  /// For each array of labels: one more than the largest that counts, as found in host memory.
  std::map<std::string, int64_t, std::less<>> labels_end{};
  /// For each mask of which the corpus says a share (ArraySpec::share): all indices of its flattened
  /// elements that are not 0, and a few others, int64 [counted], on the arrays' device. A layer whose
  /// result is multiplied by the mask may leave out the other elements.
  std::map<std::string, at::Tensor, std::less<>> counted{};
  /// For each array of segments: the documents of whole samples, as found in host memory, in order.
  /// Absent where tokens of one number do not follow one another.
  std::map<std::string, std::vector<DocumentStart>, std::less<>> documents{};
};

/// One named loss: the sum over this rank's items, and how many items there are. The trainer
/// divides by the count over all microbatches and ranks, so gradients are plain sums.
///
/// With weight 0 it is a metric: logged, never trained on. A metric may also be a vector; then it
/// is the plain sum over microbatches and ranks, and goes to metrics.jsonl alone.
struct Loss {
  std::string name;  ///< name in the log: "lm loss"; losses of one name are added up
  at::Tensor sum;    ///< float32 scalar, differentiable
  std::string over;  ///< the array whose sum is the count ("loss_mask"); empty: one per
                     ///< microbatch of a data rank, a part of it on each rank that shares it
  double weight = 1; ///< factor in the total
};

class KeyValueCache;

/// Weight gradients put off by schedules that split the backward pass.
using WeightQueue = std::vector<std::function<void()>>;

/// How a pass runs; the same from its first block to its last.
///
/// ```cpp
/// mh::StepContext context(mesh, rules, batch, {.training = true, .seed = 7});
/// ```
struct StepMode {
  bool training = false; ///< dropout is active
  bool checking = false; ///< layers compare across ranks what should agree (checking.hpp)
  /// Layers give zeros for all that they take from other tokens (StepContext::apart).
  bool tokens_apart = false;
  bool last_logits = false; ///< logits of the last token are enough: heads may leave out the others
  uint64_t seed = 0;        ///< dropout's; changes with the step
  int64_t microbatch = 0;   ///< its number in the step
  at::DeviceType target = at::kCPU; ///< type that kernels are chosen for, on the Meta device too
  double imbalance = 1; ///< on the Meta device: what the busiest share of uneven ones is assumed to
                        ///< be, times their mean
  KeyValueCache* kv_cache = nullptr;   ///< holds earlier tokens (nn/cache.hpp); generation only
  WeightQueue* weight_queue = nullptr; ///< queue for weight gradients that GEMMs put off
  double loss_scale = 1;               ///< factor of every loss before the backward pass (fp16)
  /// Items of a loss over an array in the whole step, on all ranks; null: not known ahead.
  std::function<double(const std::string& over)> loss_count{};
};

/// A tensor that was computed once for a microbatch, by name.
struct CachedTensor {
  at::Tensor from; ///< input that it was made of; undefined: it always is the same
  at::Tensor value;
};

using CachedTensors = std::multimap<std::string, CachedTensor>;

/// One pass of a microbatch: what it reads (mesh, rules, batch) and how it runs (its mode) are
/// given once; what its blocks gather and share, they leave through the functions below. It is not
/// copied: what is recomputed in backward refers to it.
class MH_API StepContext {
public:
  /// Mesh, rules and batch outlive the context; passes of one microbatch may share what is cached.
  StepContext(
      const Mesh& mesh,
      const Rules& rules,
      const Batch& batch,
      StepMode mode = {},
      std::shared_ptr<CachedTensors> cached = std::make_shared<CachedTensors>()
  );
  StepContext(const StepContext&) = delete;
  StepContext& operator=(const StepContext&) = delete;

  [[nodiscard]] const Mesh& mesh() const { return *mesh_; }

  [[nodiscard]] const Rules& rules() const { return *rules_; }

  [[nodiscard]] const Batch& batch() const { return *batch_; }

  [[nodiscard]] const StepMode& mode() const { return mode_; }

  /// An array of the batch.  Throws:  mh::Error naming the arrays there are
  [[nodiscard]] const at::Tensor& array(std::string_view name) const;
  [[nodiscard]] bool has_array(std::string_view name) const;

  /// While the value lives, the context describes the tokens of another sequence; "": of the
  /// sample's own. This holds for all functions from here to `place`, for `cached` tensors, and for
  /// what layers ask for: dropout, rotary tables, attention. Arrays of a sequence NAME begin with
  /// "NAME_".
  ///
  /// Throws:  mh::Error if samples have no such sequence
  [[nodiscard]] SequenceScope within(std::string_view sequence);

  /// Tokens per sample, over all ranks.
  [[nodiscard]] int64_t seq() const;

  /// Positions of the tokens in their documents, [seq, 1] or [seq, batch] int64: array "positions"
  /// if the corpus gives it, else 0, 1, 2, ...
  [[nodiscard]] at::Tensor positions();
  /// Index of each of this rank's tokens in its sample, [seq] int64: array "token_index" if the
  /// batch gives it, else as the strategies shard them.
  [[nodiscard]] at::Tensor token_index();
  /// Document numbers of this rank's tokens, [seq, batch] int64: array "segments", if the corpus
  /// gives it.
  [[nodiscard]] std::optional<at::Tensor> segments() const;
  /// The documents of whole samples, in host memory; empty where the batch does not say.
  [[nodiscard]] std::vector<DocumentStart> documents() const;

  /// {seq, batch, last...} with the global sizes of this microbatch.
  [[nodiscard]] Dims dims(Axis last) const;
  [[nodiscard]] Placement place(Axis last, Tier upto = Tier::between) const;

  /// Adds a loss; any block may.
  void add_loss(Loss loss);

  [[nodiscard]] const std::vector<Loss>& losses() const { return losses_; }

  /// Takes the losses out.
  [[nodiscard]] std::vector<Loss> take_losses();
  /// How many items the loss has in this microbatch on this rank: a float32 scalar.
  [[nodiscard]] at::Tensor count(const Loss& loss) const;

  /// The factor that the sum of a loss over array `over` will be multiplied by before the backward
  /// pass: weight / count in the whole step * loss scale. Absent if it is not known ahead; then a
  /// head leaves its gradient to the backward pass.
  [[nodiscard]] std::optional<double> loss_factor(const std::string& over, double weight = 1) const;

  /// Reads a value on the host; on the Meta device returns the assumption instead.
  [[nodiscard]] double host_value(const at::Tensor& scalar, double assumed) const;

  /// Reads a vector of counts on the host, as `host_value` reads a number.
  [[nodiscard]] std::vector<int64_t>
  host_values(const at::Tensor& counts, const std::vector<int64_t>& assumed) const;

  /// Something computed once per microbatch and used by many layers (rotary tables, masks).
  const at::Tensor& cached(const std::string& key, const std::function<at::Tensor()>& make);

  /// Something computed once per microbatch and tensor `from`.
  const at::Tensor&
  cached(const std::string& key, const at::Tensor& from, const std::function<at::Tensor()>& make);

  /// A context for this pass once more, without the losses so far; what is `cached` is shared.
  [[nodiscard]] StepContext again() const;

  /// A context for a pass over other values of the microbatch's arrays, in which layers give zeros
  /// for all that they take from other tokens (attention, nn/tokens_before.hpp) and add no loss
  /// that does, so that each row depends on its own token alone. Nothing else is shared with this
  /// context: neither losses nor what is `cached`. The batch outlives the result.
  [[nodiscard]] StepContext apart(const Batch& batch) const;

  /// While the value lives, parts are recomputed as a block's plan says, which outlives it.
  [[nodiscard]] KeepScope keeping(const Keep& keep);

  /// Whether the block's recompute plan has this part of it recomputed.
  [[nodiscard]] bool redoes(std::string_view part) const;

  /// Runs a named part of a block (of kRecomputeParts or of the architecture's own), keeping only
  /// its inputs if the block's recompute plan says so.
  [[nodiscard]] at::Tensor part(
      std::string_view name,
      const std::vector<at::Tensor>& inputs,
      const std::function<at::Tensor(const std::vector<at::Tensor>&)>& run
  );

  /// Runs a part whose result only `reader` reads; returns what `reader` returns. A part that
  /// is recomputed does not even save its result: the memory is freed after `reader`, and filled
  /// again when the gradient of what `reader` returned arrives.
  [[nodiscard]] at::Tensor part(
      std::string_view name,
      const std::vector<at::Tensor>& inputs,
      const std::function<at::Tensor(const std::vector<at::Tensor>&)>& run,
      const std::function<at::Tensor(const at::Tensor&)>& reader
  );

private:
  /// In another mode and over another batch, without the losses so far.
  StepContext(
      const StepContext& other,
      const Batch& batch,
      StepMode mode,
      std::shared_ptr<CachedTensors> cached
  );

  /// The name of the current sequence's array.
  [[nodiscard]] std::string of_sequence(std::string_view array) const;

  const Mesh* const mesh_;
  const Rules* const rules_;
  const Batch* const batch_;
  const StepMode mode_;

  std::shared_ptr<CachedTensors> cached_;
  std::string sequence_;       // whose tokens are meant now
  const Keep* keep_ = nullptr; // the plan of the block that runs
  std::vector<Loss> losses_;
};

} // namespace mh
