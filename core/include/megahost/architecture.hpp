#pragma once
/// Architectures: what a model plugin supplies. Not one line of it mentions a rank.

#include "megahost/builder.hpp"
#include "megahost/context.hpp"
#include "megahost/export.hpp"
#include "megahost/kind.hpp"
#include "megahost/sample.hpp"
#include "megahost/sequence.hpp"
#include "megahost/state.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace mh {

/// A piece of a model that a pipeline stage may hold: State -> State.
class MH_API Block {
public:
  virtual ~Block();
  [[nodiscard]] virtual State forward(const State& state, StepContext& context) const = 0;

  /// Whether a forward pass over new tokens alone, in a context with the kv_cache of those before,
  /// gives what a pass over all of them does: true of rows computed one by one, of causal attention
  /// and cross attention (nn/attention.hpp), of TokensBefore (nn/tokens_before.hpp), and of
  /// recurrent layers with a CachedState (nn/cache.hpp). Generation keeps a cache where all blocks
  /// say so, and else reads all tokens again for each new one.
  [[nodiscard]] virtual bool reads_cache() const { return false; }

  /// Whether it reads nothing of the tokens that generation adds, as an encoder's blocks do. The
  /// first blocks of a model that say so run once for each text.
  [[nodiscard]] virtual bool runs_once() const { return false; }
};

/// One tensor of a Hugging Face checkpoint, or of Megatron-LM's, in terms of ours.
struct HfTensor {
  std::string theirs;            ///< "model.layers.0.self_attn.q_proj.weight"
  std::vector<std::string> ours; ///< global names, concatenated along dimension 0
  bool transpose = false;        ///< theirs is [in, out] (GPT-2's Conv1D)
  std::vector<int64_t> at{};     ///< theirs is ours[at[0], at[1], ...]: one expert of all
  /// Ours are cut along dimension 0 into so many equal groups, which alternate in theirs: the first
  /// group of each of ours, then the second of each, ...: query, key and value of one head, then
  /// those of the next (GPT-NeoX).
  int64_t groups = 1;
  /// The part of ours that `at` leaves has so many entries along dimension 0, which follow each
  /// other in theirs: gate and up of an expert. 0: it is theirs as it is.
  int64_t entries = 0;
  /// Theirs may have more rows, by which a vocabulary is padded; those are not read.
  bool padded = false;
  /// The dimensions of the one tensor that theirs is, in the order that theirs has them; empty: as
  /// ours. Without groups and entries.
  std::vector<int64_t> order{};
  /// In that order the last two dimensions are one of theirs: gate and up of all units, one unit
  /// after the other (GPT-OSS).
  bool joined = false;
  /// Theirs repeats what another tensor of theirs holds: it is written, and read from that other one.
  bool repeats = false;
};

/// The initial value of a tensor of ours in a run that starts from the weights of a simpler model,
/// whose checkpoint lacks the tensor: a mixture's experts start from the one feed-forward of a
/// dense model.
struct Upcycled {
  std::string ours;                ///< global name; one that ends in a dot stands for all below it,
                                   ///< without `theirs`
  std::vector<std::string> theirs; ///< stacked if several, then repeated along what dimensions ours
                                   ///< has before; none: the usual initial values
};

class MH_API Architecture {
public:
  static constexpr Kind kKind = Kind::architecture;

  struct Args {
    int64_t vocab = 0;      ///< from the tokenizer; used where the recipe does not say
    int64_t seq_length = 0; ///< the recipe's `model.seq_length`
  };

  virtual ~Architecture();

  /// Transformer blocks, numbered from 0.
  [[nodiscard]] virtual int64_t layers() const = 0;
  /// Entries of the vocabulary, without padding.
  [[nodiscard]] virtual int64_t vocab() const = 0;

  /// The sequences that it reads in addition to `seq_length` tokens per sample, such as the input
  /// of an encoder. The corpus is told of them, and gives arrays of their lengths; the check's own
  /// samples have "NAME_tokens" for each.
  [[nodiscard]] virtual Sequences sequences() const { return {}; }

  /// The arrays of a sample that its blocks read, positions, segments and those of `sequences()`
  /// apart: what `plugins check` and `check` make samples of for a model without a corpus.
  [[nodiscard]] virtual std::vector<ArraySpec> arrays(int64_t seq_length) const {
    return decoder_arrays(seq_length);
  }

  /// Arrays that its blocks read and that are made of a sample's, before ranks take their tokens.
  [[nodiscard]] virtual std::vector<ShiftedArray> shifted_arrays() const { return {}; }

  /// The state's entries that its head sets for a batch without labels. Generation and scores read
  /// "logits" [seq, batch, vocab]; a model without it has neither.
  [[nodiscard]] virtual std::vector<std::string> outputs() const { return {"logits"}; }

  /// Reads `context.array("tokens")`, or another of `arrays()`, and makes the first state. Only the first stage builds it.
  [[nodiscard]] virtual std::unique_ptr<Block> embedding(Builder& builder) const = 0;
  [[nodiscard]] virtual std::unique_ptr<Block> layer(int64_t index, Builder& builder) const = 0;
  /// Adds the losses if the batch has labels; else sets `outputs()` in the state.
  [[nodiscard]] virtual std::unique_ptr<Block> head(Builder& builder) const = 0;

  /// The mapping to Hugging Face names; empty if there is no counterpart. The mapping of
  /// config.json's keys to fields is a static function (hugging_face.hpp).
  [[nodiscard]] virtual std::vector<HfTensor> hugging_face() const { return {}; }

  /// The mapping to the tensors of a state_dict of megatron-core's GPTModel, BertModel, T5Model or
  /// MambaModel (of its own layers, not Transformer Engine's, on one rank); empty if it is no such
  /// model. Tensors that a mixer joins are there in parts, as `torch_dist` has them:
  /// "mixer.in_proj.weight.z". Formats that join, stack or rename tensors do so by themselves.
  [[nodiscard]] virtual std::vector<HfTensor> megatron() const { return {}; }

  /// How a run starts from a simpler model's weights; empty if there is none.
  [[nodiscard]] virtual std::vector<Upcycled> upcycled() const { return {}; }
};

} // namespace mh
