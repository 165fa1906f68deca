#pragma once
/// The recipe of a run, typed: every default filled in, every word checked.
///
/// A recipe file is Lua, TOML or JSON and says the same in each:
///
/// ```lua
/// return {
///   name      = "tiny",
///   model     = { use = "llama", layers = 4, hidden = 256, heads = 4, seq_length = 256 },
///   optimizer = { use = "adamw", lr = 1e-3 },
///   batch     = { global = 8, micro = 4 },
///   data      = { use = "text", paths = { "book.txt" } },
///   train     = { iters = 200 },
/// }
/// ```
///
/// Each section with a `use` is a plugin's: its own fields lie in `options`, complete and checked
/// against the plugin's schema; the fields that the core reads itself are members.

#include "megahost/export.hpp"
#include "megahost/schema.hpp"
#include "megahost/value.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace mh {

struct Recipe {
  struct Model : PluginSection {
    std::optional<std::string> preset; ///< row of recipes/presets/models.toml
    std::optional<std::string> from;   ///< Hugging Face folder whose config.json says the fields
    int64_t seq_length = 1024;         ///< tokens per sample
  };

  /// The layout. Degrees and mechanisms are read from the keys that strategies declare for them
  /// (Field::degree, Field::mechanism), whatever these keys are called.
  struct Parallel {
    int64_t tensor = 1;                      ///< ranks along tp
    int64_t pipeline = 1;                    ///< along pp
    int64_t context = 1;                     ///< along cp
    int64_t expert = 1;                      ///< along ep
    int64_t expert_tensor = 1;               ///< along etp
    StringOr<int64_t> data = "auto";         ///< along dp; "auto": as many as the ranks allow
    std::vector<std::string> strategies;     ///< strategies in force
    std::map<MeshAxis, std::string> degrees; ///< the key that says how many ranks an axis has
    bool sequence = false;
    int64_t zero = 0;
    PluginSection schedule;
    int64_t virtual_stages = 1;
    std::string pipeline_layout = "balanced"; ///< balanced | even | "embed+3|4|4|3+head"
    std::string order = "tp-cp-ep-dp-pp";
    int64_t bucket_size = int64_t{10} << 20; ///< gradients that are summed over ranks together
    std::string reduce_dtype = "fp32";       ///< fp32 | bf16: the format in which they travel
    bool overlap = true;                     ///< gradients are reduced while the backward pass runs

    /// The name of an axis: the key of its degree, "tensor".
    [[nodiscard]] std::string word(MeshAxis axis) const {
      const auto found = degrees.find(axis);
      return found == degrees.end() ? std::string(to_string(axis)) : found->second;
    }

    /// Ranks of one copy of the model: tensor x pipeline x context.
    [[nodiscard]] int64_t model_ranks() const { return tensor * pipeline * context; }

    /// Data-parallel degree on `world` ranks.
    [[nodiscard]] int64_t data_degree(int64_t world) const {
      const auto* given = std::get_if<int64_t>(&data);
      return given ? *given : std::max<int64_t>(1, world / model_ranks());
    }

    /// Ranks this layout needs: all of its own, and as many copies as it names ("auto": one).
    [[nodiscard]] int64_t ranks() const { return model_ranks() * data_degree(1); }
  };

  /// Parameters that are trained in another way than the rest.
  struct ParameterGroup {
    std::vector<std::string> match; ///< global names, `*` for any characters
    std::optional<double> lr_multiplier, decay_multiplier;
    std::optional<bool> frozen;

    static void fields(Fields<ParameterGroup>& f);
  };

  struct Optimizer : PluginSection {
    double lr = 3e-4;
    double weight_decay = 0.1;                      ///< matrices' only; norms and biases have none
    std::string weight_decay_schedule = "constant"; ///< constant | linear | cosine
    std::optional<double> weight_decay_start;       ///< value at the start of the schedule
    bool decay_vectors = false;                     ///< weight decay of norms and biases too
    double clip_grad = 1.0;                         ///< global norm; 0 does not clip
    std::vector<ParameterGroup> groups;
    bool master_weights = true;       ///< float32 copies of bf16 weights
    std::string state_dtype = "fp32"; ///< fp32 | bf16
    bool stochastic_rounding = false; ///< rounds bf16 state, and bf16 weights without masters
    bool offload = false;             ///< masters and state in host memory
  };

  struct LrSchedule : PluginSection {
    std::string on_resume =
        "recipe"; ///< recipe | checkpoint: whose rates a resumed run goes on with
  };

  /// Sequences per optimizer step and per forward pass.
  struct Batch {
    int64_t global = 1;
    int64_t micro = 1;
    std::optional<int64_t> rampup_start;     ///< sequences of the first step
    std::optional<int64_t> rampup_increment; ///< sequences that the batch grows by at a time
    std::optional<int64_t> rampup_samples;   ///< sequences after which it has grown to `global`

    /// Sequences of the step that follows `samples` consumed ones.
    ///
    /// Source:  Megatron-LM, num_microbatches_calculator.py,
    /// RampupBatchsizeNumMicroBatchesCalculator
    [[nodiscard]] int64_t at(int64_t samples) const {
      if (!rampup_start || samples >= *rampup_samples) {
        return global;
      }
      const int64_t increments = (global - *rampup_start) / *rampup_increment;
      const int64_t steps = samples * increments / *rampup_samples;
      return std::min(global, *rampup_start + steps * *rampup_increment);
    }
  };

  struct Data : PluginSection {
    std::vector<double> split{99, 1, 0};     ///< shares of train, validation, test, as written
    int64_t prefetch = 1;                    ///< steps whose samples are read ahead
    std::optional<int64_t> prefetch_threads; ///< threads that do; one for each step if absent
    std::optional<std::string> cache;        ///< folder for copies of what lies in a store
    double cache_limit = 100;                ///< GB that they may take

    /// The same, summing to 1.
    [[nodiscard]] std::array<double, 3> shares() const {
      const double sum = split[0] + split[1] + split[2];
      return {split[0] / sum, split[1] / sum, split[2] / sum};
    }
  };

  struct Train {
    std::optional<int64_t> iters;   ///< length of the run in optimizer steps,
    std::optional<int64_t> samples; ///< or in sequences
    int64_t eval_interval = 0;      ///< steps between evaluations; 0 never evaluates
    int64_t eval_iters = 10;        ///< global batches per evaluation
    int64_t seed = 1234;
    std::optional<double> exit_minutes; ///< save and stop after this time
    std::optional<int64_t>
        exit_iters;             ///< save and stop after this step; schedules keep their length
    bool deterministic = false; ///< only operations that give the same bits each time
  };

  /// Loss scaling of precision "fp16".
  struct Fp16 {
    std::optional<double> loss_scale;  ///< constant; absent: dynamic, by the fields below
    double initial_scale = 4294967296; ///< 2^32
    double min_scale = 1;
    int64_t window = 1000;  ///< steps without overflow after which the scale doubles
    int64_t hysteresis = 2; ///< overflows that it takes until the scale is halved
  };

  /// How precision "fp8" finds the scales of a GEMM's operands.
  struct Fp8 {
    std::string recipe = "delayed"; ///< delayed | current
    int64_t history = 1024;         ///< steps whose largest values delayed scaling remembers
    std::string amax = "max";       ///< taken from the history: max | most_recent
    int64_t margin = 0;             ///< scales are smaller by 2^margin
  };

  /// The reaction to a step whose numbers are not finite or jump. It is decided before any state is
  /// touched.
  struct Guards {
    std::string nan = "stop";   ///< NaN or Inf in loss or gradients: stop | skip | rewind
    std::string spike = "off";  ///< a loss far above those before it: off | stop | skip | rewind
    double spike_z = 8;         ///< robust standard deviations that are far
    int64_t window = 128;       ///< losses that a loss is compared with
    int64_t skips = 20;         ///< steps skipped in a row after which the run stops
    int64_t rewinds = 3;        ///< rewinds after which the run stops
    int64_t skip_batches = 0;   ///< global batches left out after a rewind, behind the bad one
    int64_t compare_copies = 0; ///< steps between comparisons of copies of weights; 0: never
  };

  struct Checkpoint : PluginSection {
    std::string dir{};       ///< their folder in the storage; "runs/NAME" unless given
    bool automatic = false;  ///< `auto`: a start goes on from what lies there, in whatever format
    int64_t interval = 0;    ///< steps between checkpoints; 0 saves at the end only
    int64_t keep = 0;        ///< newest checkpoints that stay; 0 keeps all
    int64_t keep_every = 0;  ///< checkpoints of steps that this divides stay, too; 0: none
    int64_t keep_best = 0;   ///< checkpoints of the lowest validation losses stay, too; 0: none
    double keep_for = 0;     ///< hours for which each stays, too; 0: none
    double keep_per = 0;     ///< hours of each of which the first checkpoint stays, too; 0: none
    std::string local_dir{}; ///< folder of each node for its own part; empty: none
    int64_t local_interval = 0; ///< steps between checkpoints there; 0: none
    int64_t local_copies = 1;   ///< other nodes that keep a copy of a node's part
    bool save_at_end = true;
    bool async = true; ///< steps go on while a checkpoint is written
    std::string if_busy =
        "wait"; ///< wait | skip: what a save does while the one before is being written
  };

  /// The parts of a checkpoint that a new run takes.
  struct Load {
    std::string from{};            ///< a run, or another program's weights; empty: nothing
    std::optional<int64_t> step{}; ///< else the newest that is whole
    std::string format{};          ///< a format's name; empty: the one that knows the folder
    bool optimizer = false;        ///< the optimizer's state, too
    bool progress = false;         ///< the run goes on with its count of steps
    bool rng = false;              ///< random numbers go on
    bool data = false;             ///< the data go on
    bool strict = true; ///< every tensor of the model is there, and every one there has its place
    /// Patterns of tensors' names: the name in the checkpoint, true to load them, false to leave
    /// their initial values.
    std::map<std::string, Value> match{};
  };

  /// How ranks talk to one another.
  struct Comm {
    double timeout = 600;   ///< seconds after which a rank gives up waiting for the others
    double hang_after = 10; ///< seconds without progress until a rank is named; 0: never
  };

  struct Log {
    int64_t interval = 10;       ///< steps between lines
    std::string format = "line"; ///< line | megatron | json
    bool tensorboard = true;     ///< event files for TensorBoard in the run folder
    bool num_zeros = false;      ///< zeros among the gradients, in metrics and TensorBoard
    bool params_norm = false;    ///< L2 norm of the weights, likewise
    bool progress = false;       ///< progress.txt of the run folder: a line at each start and save
  };

  std::string name;
  std::vector<std::string> plugins; ///< shared libraries outside the tree
  Model model;
  Parallel parallel;
  PluginSection recompute{"none", Table{}};
  Optimizer optimizer;
  LrSchedule lr_schedule{{"constant", Table{}}};
  std::string precision = "fp32"; ///< fp32 | bf16 | fp16 | fp8: "auto" has been decided
  Fp16 fp16;
  Fp8 fp8;
  Batch batch;
  Data data;
  PluginSection tokenizer{"byte", Table{}};
  Train train;
  Guards guards;
  Checkpoint checkpoint{{"native", Table{}}};
  Load load;
  Comm comm;
  Log log;
  PluginSection device{"cpu", Table{}};
  std::optional<PluginSection> launcher; ///< asked for the rank; none: any that knows it
  std::optional<PluginSection> storage;  ///< options for paths NAME://...
  std::optional<std::string> run_dir;    ///< run folder, where checkpoints lie elsewhere
  Value sweep;                           ///< null, or a table of grid, zip, list, random

  /// All of it as a tree in the schema's order, each value with its origin: what `recipe show`
  /// prints.
  Value tree = Table{};

  /// The folder of its recipe, lock, log and metrics, a file of the disk.
  [[nodiscard]] const std::string& run_folder() const {
    return run_dir ? *run_dir : checkpoint.dir;
  }

  /// Optimizer steps of the run, from `train.iters` or `train.samples`.
  [[nodiscard]] int64_t iterations() const {
    int64_t consumed = 0;
    int64_t steps = 0;
    const int64_t samples = train.samples.value_or(0);
    while (!train.iters && batch.at(consumed) < batch.global &&
           consumed + batch.at(consumed) <= samples) {
      consumed += batch.at(consumed);
      ++steps;
    }
    return train.iters ? *train.iters : steps + (samples - consumed) / batch.global;
  }
};

} // namespace mh
