#include "core/settings/torchtitan.hpp"

#include "core/base/text.hpp"
#include "core/import/importer.hpp"
#include "core/language/read.hpp"
#include "core/settings/foreign.hpp"

#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

namespace mh {

namespace {

using enum Becomes;

constexpr const char* kDefault = "torchtitan's default";

// clang-format off
constexpr ForeignKey kKeys[] = {
    {"model.name", settings},
    {"model.flavor", settings},
    {"model.norm_type", word, "model.norm", "rmsnorm=rmsnorm fused_rmsnorm=rmsnorm compiled_rmsnorm=rmsnorm layernorm=layernorm"},
    {"model.converters", settings},
    {"model.tokenizer_path", settings},
    {"model.hf_assets_path", settings},
    {"model.print_after_conversion", nothing},
    {"hf_assets_path", settings},

    {"optimizer.name", word, "optimizer.use", "AdamW=adamw Adam=adam"},
    {"optimizer.lr", settings},
    {"optimizer.beta1", settings},
    {"optimizer.beta2", settings},
    {"optimizer.eps", number, "optimizer.eps"},
    {"optimizer.weight_decay", number, "optimizer.weight_decay"},
    {"optimizer.implementation", nothing},
    {"optimizer.fused", nothing},
    {"optimizer.foreach", nothing},
    {"optimizer.early_step_in_backward", nothing},

    {"lr_scheduler.warmup_steps", settings},
    {"training.warmup_steps", settings},
    {"lr_scheduler.decay_ratio", settings},
    {"lr_scheduler.decay_type", settings},
    {"lr_scheduler.min_lr_factor", settings},
    {"lr_scheduler.lr_min", settings},
    {"lr_scheduler.total_steps", settings},

    {"training.batch_size", settings},
    {"training.local_batch_size", settings},
    {"training.global_batch_size", settings},
    {"training.seq_len", settings},
    {"training.steps", settings},
    {"training.max_norm", number, "optimizer.clip_grad"},
    {"training.enable_cpu_offload", on, "optimizer.offload"},
    {"training.dtype", settings},
    {"training.mixed_precision_param", word, "precision", "bfloat16=bf16 float32=fp32"},
    {"training.mixed_precision_reduce", word, "parallel.reduce_dtype", "float32=fp32 bfloat16=bf16"},
    {"training.seed", number, "train.seed"},
    {"training.deterministic", on, "train.deterministic"},
    {"training.dataset", settings},
    {"training.dataset_path", settings},
    {"training.enable_fp8_linear", settings},
    {"training.compile", nothing},
    {"training.gc_*", nothing},
    {"debug.seed", number, "train.seed"},
    {"debug.deterministic", on, "train.deterministic"},
    {"debug.moe_force_load_balance", changes, {}, {}, "routers choose by their logits"},
    {"debug.*", nothing},
    {"training.debug_moe_force_load_balance", changes, {}, {}, "routers choose by their logits"},
    {"dataloader.*", settings},

    {"parallelism.data_parallel_replicate_degree", settings},
    {"parallelism.data_parallel_shard_degree", settings},
    {"parallelism.fsdp_reshard_after_forward", settings},
    {"parallelism.tensor_parallel_degree", settings},
    {"parallelism.enable_sequence_parallel", settings},
    {"parallelism.pipeline_parallel_degree", settings},
    {"parallelism.pipeline_parallel_schedule", settings},
    {"parallelism.pipeline_parallel_layers_per_stage", settings},
    {"parallelism.pipeline_parallel_microbatch_size", settings},
    {"parallelism.pipeline_parallel_schedule_csv", changes, {}, {}, "a schedule is a plugin"},
    {"parallelism.context_parallel_degree", settings},
    {"parallelism.context_parallel_rotate_method", settings},
    {"parallelism.expert_parallel_degree", settings},
    {"parallelism.expert_tensor_parallel_degree", settings},
    {"parallelism.*", nothing},
    {"training.*parallel*", settings}, // where files of 2024 have degrees
    {"experimental.*parallel*", settings},
    {"experimental.custom_*", changes, {}, {}, "a plugin has what other programs import"},
    {"experimental.*", nothing},

    {"activation_checkpoint.mode", settings},
    {"activation_checkpoint.selective_ac_option", settings},
    {"activation_checkpoint.*", nothing},

    {"checkpoint.enable", settings},
    {"checkpoint.enable_checkpoint", settings},
    {"checkpoint.folder", settings},
    {"checkpoint.interval", settings},
    {"checkpoint.keep_latest_k", settings},
    {"checkpoint.async_mode", settings},
    {"checkpoint.initial_load_path", settings},
    {"checkpoint.*", nothing},

    {"float8.recipe_name", settings},
    {"float8.enable_float8_linear", settings},
    {"float8.*", nothing},
    {"mx.*", nothing},
    {"quantize.*", nothing},

    {"metrics.log_freq", settings},
    {"metrics.enable_tensorboard", on, "log.tensorboard"},
    {"metrics.*", nothing},
    {"comm.train_timeout_seconds", number, "comm.timeout"},
    {"comm.*", nothing},
    {"validation.enabled", settings},
    {"validation.enable", settings},
    {"validation.freq", settings},
    {"validation.steps", settings},
    {"validation.*", nothing},
    {"fault_tolerance.semi_sync_method", changes, {}, {}, "gradients are summed at each step"},
    {"fault_tolerance.*", nothing},
    {"job.dump_folder", settings},
    {"dump_folder", settings},
    {"job.*", nothing},
    {"profiling.*", nothing},
    {"compile.*", nothing},
    {"memory_estimation.*", nothing},
    {"liger_kernel.*", nothing},
};
// clang-format on

/// The models, by name and flavor. `is`: the row that one starts from. yarn_above: longer samples are
/// read with YaRN, of this attention factor.
///
/// Source:  torchtitan/models/{llama3,qwen3,deepseek_v3}: their flavors of 2025 and 2026
constexpr const char* kFlavors = R"(
[llama3]
debugmodel = { layers = 6, hidden = 256, heads = 16, ffn_hidden = 768, vocab = 2048 }
1B = { layers = 16, hidden = 2048, heads = 32, kv_heads = 8, ffn_hidden = 8192, tied = true }
3B = { layers = 28, hidden = 3072, heads = 24, kv_heads = 8, ffn_hidden = 8192, tied = true }
8B = { layers = 32, hidden = 4096, heads = 32, kv_heads = 8, ffn_hidden = 14336 }
70B = { layers = 80, hidden = 8192, heads = 64, kv_heads = 8, ffn_hidden = 28672 }
405B = { layers = 126, hidden = 16384, heads = 128, kv_heads = 8, ffn_hidden = 53248 }

[llama3.all]
use = "llama"
vocab = 128256
norm_eps = 1e-5
rope_base = 500000.0
rope_scaling = "llama3"
rope_factor = 8.0
rope_original_length = 8192

[qwen3]
debugmodel = { layers = 8, hidden = 256, heads = 16, kv_heads = 8, ffn_hidden = 3072, vocab = 2048, tied = true }
"0.6B" = { layers = 28, hidden = 1024, heads = 16, kv_heads = 8, ffn_hidden = 3072, tied = true }
"1.7B" = { layers = 28, hidden = 2048, heads = 16, kv_heads = 8, ffn_hidden = 6144, tied = true }
4B = { layers = 36, hidden = 2560, heads = 32, kv_heads = 8, ffn_hidden = 9728, tied = true }
8B = { layers = 36, hidden = 4096, heads = 32, kv_heads = 8, ffn_hidden = 12288 }
14B = { layers = 40, hidden = 5120, heads = 40, kv_heads = 8, ffn_hidden = 17408 }
32B = { layers = 64, hidden = 5120, heads = 64, kv_heads = 8, ffn_hidden = 25600 }
debugmodel_moe = { use = "moe", layers = 8, hidden = 256, heads = 16, kv_heads = 8, expert_hidden = 768, experts = 64, experts_per_token = 8, vocab = 2048, router = "softmax_topk", router_normalise = true, balance = ["bias"] }
30B-A3B = { use = "moe", layers = 48, hidden = 2048, heads = 32, kv_heads = 4, expert_hidden = 768, experts = 128, experts_per_token = 8, router = "softmax_topk", router_normalise = true, balance = ["bias"] }
235B-A22B = { use = "moe", layers = 94, hidden = 4096, heads = 64, kv_heads = 4, expert_hidden = 1536, experts = 128, experts_per_token = 8, router = "softmax_topk", router_normalise = true, balance = ["bias"] }

[qwen3.all]
use = "llama"
head_dim = 128
vocab = 151936
norm_eps = 1e-6
rope_base = 1000000.0
qk_norm = true

[deepseek_v3]
debugmodel = { layers = 6, hidden = 256, heads = 16, ffn_hidden = 1024, expert_hidden = 256, shared_hidden = 512, experts = 8, experts_per_token = 3, vocab = 2048, rope_mscale = 0.7, rope_mscale_all_dim = 0.7 }
16B = { layers = 27, hidden = 2048, heads = 16, ffn_hidden = 10944, expert_hidden = 1408, shared_hidden = 2816, experts = 64, experts_per_token = 6, rope_mscale = 0.7, rope_mscale_all_dim = 0.7 }
236B = { layers = 60, hidden = 5120, heads = 128, q_rank = 1536, ffn_hidden = 12288, expert_hidden = 1536, shared_hidden = 3072, experts = 160, experts_per_token = 6, router_groups = 8, router_groups_chosen = 3, router_scale = 16.0 }
671B = { layers = 61, hidden = 7168, heads = 128, q_rank = 1536, ffn_hidden = 18432, expert_hidden = 2048, shared_hidden = 2048, experts = 256, experts_per_token = 8, first_dense = 3, vocab = 129280, router = "sigmoid", router_groups = 8, router_groups_chosen = 4, router_scale = 2.5 }

[deepseek_v3.all]
use = "moe"
head_dim = 128
kv_rank = 512
rope_head_dim = 64
v_head_dim = 128
vocab = 102400
first_dense = 1
router = "softmax_topk"
balance = ["bias"]
norm_eps = 1e-5
rope_base = 10000.0
rope_scaling = "yarn"
rope_factor = 40.0
rope_original_length = 4096
rope_mscale = 1.0
rope_mscale_all_dim = 1.0
)";

class Torchtitan {
public:
  explicit Torchtitan(const Value& tree)
      : from_(tree, kKeys) {}

  ImportedRecipe run() {
    from_.take();
    model();
    layout();
    batch();
    optimizer();
    schedule();
    precision();
    recompute();
    checkpoints();
    rest();
    return std::move(from_.result());
  }

private:
  /// Sets the key to a number, or to torchtitan's default.
  void set_number(const std::string& key, std::string_view path, double otherwise) {
    from_.set(
        key,
        number_value(from_.number(path, otherwise)),
        from_.find(path) != nullptr ? path : kDefault
    );
  }

  void model() {
    static const Value flavors = read_toml(std::make_shared<const Source>(Source{
        "torchtitan's flavors", kFlavors, "torchtitan"}));
    const std::string name = from_.text("model.name"), flavor = from_.text("model.flavor");
    const Value* family = flavors.find(name);
    if (family == nullptr) {
      from_.refuse(
          "model.name",
          name.empty() ? "there is no model.name, which says what the model is"
                       : "model.name is " + string_text(name) + ", which has no equivalent here",
          "known are " + names_of(flavors)
      );
    }
    const Value* sizes = flavor == "all" ? nullptr : family->find(flavor);
    if (sizes == nullptr) {
      from_.refuse(
          flavor.empty() ? "model.name" : "model.flavor",
          flavor.empty() ? "there is no model.flavor, which says the model's sizes"
                         : "model.flavor is " + string_text(flavor) + ", which is not known here",
          "known are " + names_of(*family)
      );
    }
    from_.set("name", name + "-" + flavor, "model.flavor");
    Table fields = family->find("all")->as_table();
    for (const auto& entry : sizes->as_table()) {
      fields.set(entry.key, entry.value);
    }
    set_number("model.seq_length", "training.seq_len", 2048);
    const int64_t tokens = from_.integer("training.seq_len", 2048);
    const Value* yarn = fields.find("rope_scaling");
    const bool plain = yarn != nullptr && *yarn == Value("yarn") &&
                       tokens <= fields.find("rope_original_length")->as_integer();
    for (const auto& entry : fields) {
      if (!plain || entry.key == "rope_base" || entry.key == "rope_head_dim" ||
          !entry.key.starts_with("rope_")) {
        from_.set("model." + entry.key, entry.value, "model.flavor");
      }
    }
    if (name == "llama3") {
      from_.comment(
          "model.rope_scaling is that of Llama 3.1, which torchtitan has since autumn 2025; "
          "versions before it do without: model.rope_scaling = \"none\""
      );
    }
    from_.comment(
        "initial values differ: torchtitan cuts their normal distribution off, and those of "
        "the output layer and of embeddings have other deviations"
    );
  }

  static std::string names_of(const Value& table) {
    std::vector<std::string> names;
    for (const auto& entry : table.as_table()) {
      if (entry.key != "all") {
        names.push_back(entry.key);
      }
    }
    return join(names);
  }

  /// The key of a degree, in whichever of the sections it stands.
  [[nodiscard]] std::string degree_key(const std::string& name) const {
    for (const char* section : {"parallelism.", "training.", "experimental."}) {
      if (from_.find(section + name) != nullptr) {
        return section + name;
      }
    }
    return "parallelism." + name;
  }

  int64_t degree(const std::string& key, const std::string& name) {
    const std::string path = degree_key(name);
    const int64_t value = from_.integer(path, 1);
    if (value < 1) {
      from_.refuse(path, path + " is " + std::to_string(value) + ", expected 1 or more");
    }
    if (from_.find(path) != nullptr) {
      from_.set("parallel." + key, value, path);
    }
    return value;
  }

  void layout() {
    const int64_t tensor = degree("tensor", "tensor_parallel_degree");
    if (tensor > 1 && from_.is("parallelism.enable_sequence_parallel", true)) {
      const char* key = "parallelism.enable_sequence_parallel";
      from_.set("parallel.sequence", true, from_.find(key) != nullptr ? key : kDefault);
    }
    stages_ = degree("pipeline", "pipeline_parallel_degree");
    const int64_t context = degree("context", "context_parallel_degree");
    if (context > 1) {
      const std::string path = degree_key("context_parallel_rotate_method");
      const std::string method = from_.text(path, "allgather");
      if (method != "allgather" && method != "alltoall") {
        from_.refuse(
            path, path + " is " + string_text(method) + ", expected allgather or alltoall"
        );
      }
      from_.set("parallel.context_method", method == "alltoall" ? "ring" : "all_gather", path);
    }
    degree("expert", "expert_parallel_degree");
    if (from_.find("parallelism.expert_tensor_parallel_degree") != nullptr) {
      degree("expert_tensor", "expert_tensor_parallel_degree");
    }
    pipeline();
    copies();
  }

  void pipeline() {
    if (stages_ <= 1) {
      return;
    }
    const std::string path = degree_key("pipeline_parallel_schedule");
    const std::string name = from_.text(path, "1F1B");
    if (name == "Interleaved1F1B") {
      const int64_t each = from_.integer("parallelism.pipeline_parallel_layers_per_stage", 0);
      const int64_t layers = from_.result().tree.find_path("model.layers")->as_integer();
      from_.set(
          "parallel.virtual_stages",
          each > 0 ? std::max<int64_t>(2, layers / stages_ / each) : 2,
          path
      );
    } else if (name == "ZBVZeroBubble") {
      from_.set("parallel.schedule", "zb-v", path);
      from_.set("parallel.virtual_stages", 2, path);
    } else if (name == "GPipe" || name == "1F1B") {
      from_.set("parallel.schedule", name == "GPipe" ? "gpipe" : "1f1b", path);
    } else {
      from_.comment(path + ": no equivalent of " + name + ": 1F1B, with the same numbers");
    }
  }

  /// The fewest data-parallel ranks with which those of a stage divide by those of experts.
  [[nodiscard]] int64_t fewest_copies() const {
    const auto given = [this](const char* name) { return from_.integer(degree_key(name), 1); };
    const int64_t experts =
        given("expert_parallel_degree") * given("expert_tensor_parallel_degree");
    const int64_t others = given("tensor_parallel_degree") * given("context_parallel_degree");
    return experts / std::gcd(experts, others);
  }

  /// Data-parallel ranks, and what they share.
  void copies() {
    const std::string old = "training.data_parallel_degree";
    const std::string replicate = degree_key("data_parallel_replicate_degree");
    const std::string shard =
        from_.find(old) != nullptr ? old : degree_key("data_parallel_shard_degree");
    const int64_t copies = from_.integer(replicate, 1), shards = from_.integer(shard, -1);
    if (copies < 1 || (shards < 1 && shards != -1)) {
      const std::string& wrong = copies < 1 ? replicate : shard;
      from_.refuse(
          wrong,
          wrong + " is no number of ranks, expected 1 or more" +
              (copies < 1 ? "" : ", or -1 for those that are left")
      );
    }
    const char* by = from_.find(shard) != nullptr ? shard.c_str() : kDefault;
    if (const int64_t fewest = fewest_copies(); shards == -1 && fewest > 1) {
      ranks_ = fewest;
      from_.set("parallel.data", fewest, by);
      from_.comment(
          "parallel.data: torchtitan takes the ranks that are left; these are the fewest between "
          "which experts can be sharded, so set it and batch.global to what there is"
      );
    } else if (shards == -1) {
      from_.set("parallel.data", "auto", by);
    } else {
      ranks_ = copies * shards;
      from_.set("parallel.data", ranks_, shard);
    }
    if (shards == 1) {
      return; // copies, as DDP has them
    }
    const char* reshard = "parallelism.fsdp_reshard_after_forward";
    const bool keeps = from_.text(reshard, "default") == "never";
    if (stages_ > 1) {
      from_.set("parallel.zero", 1, "FSDP, in a pipeline");
      from_.comment(
          shard + ": in a pipeline the optimizer's state is sharded, and weights are not"
      );
    } else {
      from_.set("parallel.zero", keeps ? 2 : 3, keeps ? std::string_view(reshard) : "FSDP");
    }
    if (copies > 1) {
      from_.comment(
          replicate + ": weights are sharded over all data-parallel ranks, also over copies"
      );
    }
  }

  void batch() {
    const char* key = from_.find("training.batch_size") != nullptr ? "training.batch_size"
                                                                   : "training.local_batch_size";
    const int64_t local = from_.integer(key, 8);
    const char* by = from_.find(key) != nullptr ? key : kDefault;
    if (stages_ > 1) {
      set_number("batch.micro", "parallelism.pipeline_parallel_microbatch_size", 1);
    } else {
      from_.set("batch.micro", local, by);
    }
    const int64_t global = from_.integer("training.global_batch_size", -1);
    if (global > 0) {
      from_.set("batch.global", global, "training.global_batch_size");
      return;
    }
    from_.set("batch.global", local * std::max<int64_t>(1, ranks_), by);
    if (ranks_ == 0) {
      from_.comment(
          "batch.global is that of one data-parallel rank: torchtitan's step has " +
          std::to_string(local) + " sequences of each of them, so set it to " +
          std::to_string(local) + " times as many as there are"
      );
    }
  }

  void optimizer() {
    set_number("optimizer.lr", "optimizer.lr", 8e-4);
    const bool given = from_.find("optimizer.beta1") != nullptr || from_.find("optimizer.beta2");
    from_.set(
        "optimizer.betas",
        Value::Array{from_.number("optimizer.beta1", 0.9), from_.number("optimizer.beta2", 0.95)},
        given ? "optimizer.beta1 and beta2" : kDefault
    );
    from_.set("optimizer.decay_vectors", true, "torchtitan decays all weights");
  }

  void schedule() {
    const char* warm = from_.find("lr_scheduler.warmup_steps") != nullptr
                           ? "lr_scheduler.warmup_steps"
                           : "training.warmup_steps";
    set_number("train.iters", "training.steps", 10000);
    const int64_t steps = from_.integer("training.steps", 10000);
    const char* length = "lr_scheduler.total_steps";
    const int64_t whole = from_.integer(length, steps);
    const int64_t warmup = from_.integer(warm, 200);
    set_number("lr_schedule.warmup_iters", warm, 200);
    const std::string type = from_.text("lr_scheduler.decay_type", "linear");
    if (type != "linear" && type != "cosine" && type != "sqrt") {
      from_.refuse(
          "lr_scheduler.decay_type",
          "lr_scheduler.decay_type is " + string_text(type) + ", expected linear, sqrt or cosine"
      );
    }
    const char* by =
        from_.find("lr_scheduler.decay_type") != nullptr ? "lr_scheduler.decay_type" : kDefault;
    const Value* ratio = from_.find("lr_scheduler.decay_ratio");
    if (ratio == nullptr && type != "sqrt") {
      from_.set("lr_schedule.use", type, by);
      from_.set(
          "lr_schedule.decay_iters",
          whole,
          from_.find(length) != nullptr ? length : "training.steps"
      );
    } else {
      from_.set("lr_schedule.use", "wsd", ratio != nullptr ? "lr_scheduler.decay_ratio" : by);
      const auto down =
          ratio == nullptr
              ? whole - warmup
              : std::llround(
                    from_.number("lr_scheduler.decay_ratio", 0) * static_cast<double>(whole)
                );
      from_.set(
          "lr_schedule.cooldown_iters",
          static_cast<int64_t>(std::max<long long>(1, down)),
          ratio != nullptr ? "lr_scheduler.decay_ratio" : "the steps behind warm-up"
      );
      if (from_.find(length) != nullptr) {
        from_.set("lr_schedule.decay_iters", whole, length);
      }
      from_.set("lr_schedule.cooldown", type == "sqrt" ? "minus_sqrt" : type, by);
    }
    const char* least = from_.find("lr_scheduler.min_lr_factor") != nullptr
                            ? "lr_scheduler.min_lr_factor"
                            : "lr_scheduler.lr_min";
    const double factor = from_.number(least, 0);
    if (factor > 0) {
      from_.set(
          "lr_schedule.min_lr", share_of_rate(from_.number("optimizer.lr", 8e-4), factor), least
      );
    }
    from_.comment("learning rates are a step apart: torchtitan warms up over warmup_steps + 1 steps"
    );
  }

  /// Whether a converter of this name is in model.converters, a text or a list of them.
  [[nodiscard]] bool converts(std::string_view name) const {
    const Value* given = from_.find("model.converters");
    const std::string all = given == nullptr     ? ""
                            : given->is_string() ? given->as_string()
                                                 : to_text(*given);
    return all.find(name) != std::string::npos;
  }

  void precision() {
    if (!from_.is_set("precision")) {
      from_.set("precision", "bf16", kDefault);
    }
    from_.set("device", "cuda", kDefault);
    if (from_.text("training.dtype", "float32") == "bfloat16") {
      from_.set("precision", "bf16", "training.dtype");
      from_.set("optimizer.master_weights", false, "training.dtype");
      from_.set("optimizer.state_dtype", "bf16", "training.dtype");
    }
    const char* old = from_.is("training.enable_fp8_linear") ? "training.enable_fp8_linear"
                                                             : "float8.enable_float8_linear";
    if (converts("float8") || from_.is(old)) {
      from_.set("precision", "fp8", converts("float8") ? "model.converters" : old);
      from_.set("fp8.recipe", "current", "float8");
      const std::string recipe = from_.text("float8.recipe_name", "tensorwise");
      if (recipe != "tensorwise") {
        from_.comment(
            "float8.recipe_name: no equivalent of " + recipe +
            ", training differs: a scale is of a whole tensor"
        );
      }
    }
    if (converts("mx") && !converts("float8")) {
      from_.comment("model.converters: no equivalent, training differs: there are no MX formats");
    }
  }

  void recompute() {
    const char* path = "activation_checkpoint.mode";
    const std::string mode = from_.text(path, "selective");
    const char* by = from_.find(path) != nullptr ? path : kDefault;
    if (mode == "none" || mode == "full") {
      from_.set("recompute.use", mode, by);
      return;
    }
    from_.set("recompute.use", "selective", by);
    const Value* every = from_.find("activation_checkpoint.selective_ac_option");
    from_.comment(
        std::string(path) + ": " + mode + (every != nullptr ? " with " + to_text(*every) : "") +
        " is attention's core here; recompute = { use = \"budget\", memory_gb = N } recomputes what "
        "does not fit. Numbers are the same"
    );
  }

  void checkpoints() {
    const bool enabled = from_.is("checkpoint.enable") || from_.is("checkpoint.enable_checkpoint");
    if (enabled) {
      const char* dump =
          from_.find("job.dump_folder") != nullptr ? "job.dump_folder" : "dump_folder";
      from_.set(
          "checkpoint.dir",
          from_.text(dump, "./outputs") + "/" + from_.text("checkpoint.folder", "checkpoint"),
          from_.find("checkpoint.folder") != nullptr ? "checkpoint.folder" : kDefault
      );
      set_number("checkpoint.interval", "checkpoint.interval", 500);
      set_number("checkpoint.keep", "checkpoint.keep_latest_k", 10);
      from_.set(
          "checkpoint.async",
          from_.text("checkpoint.async_mode", "disabled") != "disabled",
          from_.find("checkpoint.async_mode") != nullptr ? "checkpoint.async_mode" : kDefault
      );
    }
    if (from_.find("checkpoint.initial_load_path") != nullptr) {
      from_.set(
          "load.from", from_.text("checkpoint.initial_load_path"), "checkpoint.initial_load_path"
      );
    }
  }

  void rest() {
    set_number("log.interval", "metrics.log_freq", 10);
    const bool validates = from_.is("validation.enabled") || from_.is("validation.enable");
    if (validates) {
      set_number("train.eval_interval", "validation.freq", 10);
      const int64_t steps = from_.integer("validation.steps", -1);
      if (steps > 0) {
        from_.set("train.eval_iters", steps, "validation.steps");
      } else {
        from_.comment("validation.steps: train.eval_iters says how many batches are evaluated, 10 "
                      "unless given");
      }
    }
    from_.set("data.use", "mock", "training.dataset");
    const Value* vocab = from_.result().tree.find_path("model.vocab");
    from_.set("tokenizer", Table{}, "");
    from_.set("tokenizer.use", "null", "ids");
    from_.set("tokenizer.vocab", *vocab, "model.flavor");
    from_.comment(
        "training.dataset " + string_text(from_.text("training.dataset", "c4_test")) +
        ": data are made up here; megahost data prepare makes a corpus of texts, data = { use = "
        "\"indexed\", paths = {...} } reads it, and tokenizer = { use = \"hf\", path = ... } the folder "
        "that torchtitan has as hf_assets_path"
    );
  }

  ForeignSettings from_;
  int64_t stages_ = 1;
  int64_t ranks_ = 0; ///< data-parallel ones; 0: as many as there are
};

} // namespace

bool is_torchtitan(const Value& tree) {
  return tree.find_path("training.seq_len") != nullptr ||
         (tree.find("training") != nullptr && tree.find_path("model.flavor") != nullptr);
}

ImportedRecipe import_torchtitan(const Value& tree) {
  return Torchtitan(tree).run();
}

} // namespace mh
