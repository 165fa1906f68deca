#pragma once
/// The recipe of a run, typed: every default filled in, every word checked.
///
/// A recipe file is Lua, TOML or JSON and says the same in each:
///
///     return {
///       name      = "tiny",
///       model     = { use = "llama", layers = 4, hidden = 256, heads = 4, seq_length = 256 },
///       optimizer = { use = "adamw", lr = 1e-3 },
///       batch     = { global = 8, micro = 4 },
///       data      = { use = "text", paths = { "book.txt" } },
///       train     = { iters = 200 },
///     }
///
/// Each section with a `use` is a plugin's: its own fields lie in `options`, complete and checked
/// against the plugin's schema; the fields that the core reads itself are members.

#include "megahost/export.hpp"
#include "megahost/schema.hpp"
#include "megahost/value.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace mh {

/// A section that a plugin supplies.
struct PluginSection {
  std::string use;         ///< the plugin's name
  Value options = Table{}; ///< the plugin's fields, complete
};

struct Recipe {
  struct Model : PluginSection {
    std::optional<std::string> preset; ///< row of recipes/presets/models.toml
    int64_t seq_length = 1024;         ///< tokens per sample
  };

  /// Degrees of the mesh axes, and what lies along them.
  struct Parallel {
    int64_t tensor = 1;
    bool sequence = false;
    int64_t pipeline = 1;
    int64_t context = 1;
    int64_t expert = 1;
    int64_t expert_tensor = 1;
    StringOr<int64_t> data = "auto"; ///< "auto": as many as the ranks allow
    int64_t zero = 0;
    std::string schedule = "1f1b";
    int64_t virtual_stages = 1;
    std::string context_method = "ring"; ///< ring | all_gather | all_to_all
    std::string order = "tp-cp-ep-dp-pp";

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

  struct Optimizer : PluginSection {
    double lr = 3e-4;
    double weight_decay = 0.1; ///< of matrices; norms and biases have none
    double clip_grad = 1.0;    ///< global norm; 0 does not clip
  };

  /// Sequences per optimizer step and per forward pass.
  struct Batch {
    int64_t global = 1;
    int64_t micro = 1;
  };

  struct Data : PluginSection {
    std::vector<double> split{99, 1, 0}; ///< shares of train, validation, test, as written

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
        exit_iters; ///< save and stop after this step; schedules keep their length
  };

  struct Checkpoint {
    std::string dir;      ///< run folder; "runs/NAME" unless given
    int64_t interval = 0; ///< steps between checkpoints; 0 saves at the end only
    int64_t keep = 0;     ///< newest checkpoints that stay; 0 keeps all
    bool save_at_end = true;
  };

  /// How ranks talk to one another.
  struct Comm {
    double timeout = 600; ///< seconds after which a rank gives up waiting for the others
  };

  struct Log {
    int64_t interval = 10;       ///< steps between lines
    std::string format = "line"; ///< line | megatron | json
    bool tensorboard = true;     ///< event files for TensorBoard in the run folder
  };

  std::string name;
  std::vector<std::string> plugins; ///< shared libraries outside the tree
  Model model;
  Parallel parallel;
  PluginSection recompute{"none", Table{}};
  Optimizer optimizer;
  PluginSection lr_schedule{"constant", Table{}};
  std::string precision = "fp32"; ///< fp32 | bf16: "auto" has been decided
  Batch batch;
  Data data;
  PluginSection tokenizer{"byte", Table{}};
  Train train;
  Checkpoint checkpoint;
  Comm comm;
  Log log;
  std::string device = "cpu"; ///< cpu | cuda | a device plugin's name
  Value sweep;                ///< null, or a table of grid, zip, list, random

  /// All of it as a tree in the schema's order, each value with its origin: what `recipe show`
  /// prints.
  Value tree = Table{};

  /// Optimizer steps of the run, from `train.iters` or `train.samples`.
  [[nodiscard]] int64_t iterations() const {
    return train.iters ? *train.iters : train.samples.value_or(0) / batch.global;
  }
};

} // namespace mh
