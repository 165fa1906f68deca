// NeMo's settings in the sections of Megatron-Bridge.

#include "core/base/text.hpp"
#include "core/settings/bridge.hpp"
#include "core/settings/foreign.hpp"
#include "core/settings/nemo_classes.hpp"

#include <cmath>
#include <string>
#include <utility>

namespace mh {

namespace {

/// The place of one of NeMo's settings in Megatron-Bridge. A name that ends with a dot stands for all
/// that is below it; the first row that fits counts.
struct Move {
  std::string_view from, to; ///< "": nowhere
};

// clang-format off
constexpr Move kSecond[] = { // NeMo 2: nemo.collections.llm.api.pretrain
    {"model.config.", "model."},
    {"model.optim.", ""},
    {"model.", ""},
    {"optim.config.", "optimizer."},
    {"optim.lr_scheduler.warmup_steps", "scheduler.lr_warmup_iters"},
    {"optim.lr_scheduler.max_steps", "scheduler.lr_decay_iters"},
    {"optim.", ""},
    {"data.seq_length", "dataset.sequence_length"},
    {"data.paths", "dataset.data_path"},
    {"data.split", "dataset.split"},
    {"data.index_mapping_dir", "dataset.path_to_cache"},
    {"data.seed", "dataset.random_seed"},
    {"data.reset_position_ids", "dataset.reset_position_ids"},
    {"data.reset_attention_mask", "dataset.reset_attention_mask"},
    {"data.eod_mask_loss", "dataset.eod_mask_loss"},
    {"data.micro_batch_size", "train.micro_batch_size"},
    {"data.global_batch_size", "train.global_batch_size"},
    {"data.rampup_batch_size", "train.rampup_batch_size"},
    {"data.", ""},
    {"trainer.max_steps", "train.train_iters"},
    {"trainer.val_check_interval", "train.eval_interval"},
    {"trainer.limit_val_batches", "train.eval_iters"},
    {"trainer.log_every_n_steps", "logger.log_interval"},
    {"trainer.devices", "launcher.devices"},
    {"trainer.num_nodes", "launcher.nodes"},
    {"trainer.strategy.ddp.", "ddp."},
    {"trainer.strategy.ckpt_async_save", "checkpoint.async_save"},
    {"trainer.strategy.tensor_model_parallel_size", "model.tensor_model_parallel_size"},
    {"trainer.strategy.pipeline_model_parallel_size", "model.pipeline_model_parallel_size"},
    {"trainer.strategy.virtual_pipeline_model_parallel_size", "model.virtual_pipeline_model_parallel_size"},
    {"trainer.strategy.context_parallel_size", "model.context_parallel_size"},
    {"trainer.strategy.sequence_parallel", "model.sequence_parallel"},
    {"trainer.strategy.expert_model_parallel_size", "model.expert_model_parallel_size"},
    {"trainer.strategy.expert_tensor_parallel_size", "model.expert_tensor_parallel_size"},
    {"trainer.strategy.", ""},
    {"trainer.plugins.precision", ""},
    {"trainer.plugins.", "mixed_precision."},
    {"trainer.", ""},
    {"log.name", "logger.wandb_exp_name"},
    {"log.", ""},
    {"resume.", ""},
};

constexpr Move kFirst[] = { // NeMo 1: examples/nlp/language_modeling/conf/megatron_gpt_config.yaml
    {"trainer.max_steps", "train.train_iters"},
    {"trainer.val_check_interval", "train.eval_interval"},
    {"trainer.limit_val_batches", "train.eval_iters"},
    {"trainer.log_every_n_steps", "logger.log_interval"},
    {"trainer.gradient_clip_val", "optimizer.clip_grad"},
    {"trainer.devices", "launcher.devices"},
    {"trainer.num_nodes", "launcher.nodes"},
    {"trainer.", ""},
    {"exp_manager.explicit_log_dir", "checkpoint.save"},
    {"exp_manager.exp_dir", "checkpoint.save"},
    {"exp_manager.checkpoint_callback_params.every_n_train_steps", "checkpoint.save_interval"},
    {"exp_manager.checkpoint_callback_params.save_top_k", "checkpoint.most_recent_k"},
    {"exp_manager.", ""},
    {"name", "logger.wandb_exp_name"},
    {"restore_from_path", "checkpoint.pretrained_checkpoint"},
    {"run.", ""},
    {"model.micro_batch_size", "train.micro_batch_size"},
    {"model.global_batch_size", "train.global_batch_size"},
    {"model.rampup_batch_size", "train.rampup_batch_size"},
    {"model.encoder_seq_length", "dataset.sequence_length"},
    {"model.activations_checkpoint_granularity", "model.recompute_granularity"},
    {"model.activations_checkpoint_method", "model.recompute_method"},
    {"model.activations_checkpoint_num_layers", "model.recompute_num_layers"},
    {"model.activations_checkpoint_layers_per_pipeline", ""},
    {"model.bias", "model.add_bias_linear"},
    {"model.rotary_percentage", "model.rotary_percent"},
    {"model.seed", "rng.seed"},
    {"model.native_amp_init_scale", "optimizer.initial_loss_scale"},
    {"model.native_amp_growth_interval", "optimizer.loss_scale_window"},
    {"model.hysteresis", "optimizer.hysteresis"},
    {"model.data.data_prefix", "dataset.data_path"},
    {"model.data.index_mapping_dir", "dataset.path_to_cache"},
    {"model.data.splits_string", "dataset.split"},
    {"model.data.data_impl", "dataset.mock"},
    {"model.data.seq_length", ""},
    {"model.data.skip_warmup", ""},
    {"model.data.validation_drop_last", ""},
    {"model.data.no_seqlen_plus_one_input_tokens", ""},
    {"model.data.pad_samples_to_global_batch_size", ""},
    {"model.data.shuffle_documents", ""},
    {"model.data.exchange_indices_distributed", ""},
    {"model.data.", "dataset."},
    {"model.optim.lr", "optimizer.lr"},
    {"model.optim.weight_decay", "optimizer.weight_decay"},
    {"model.optim.sched.warmup_steps", "scheduler.lr_warmup_iters"},
    {"model.optim.sched.min_lr", "optimizer.min_lr"},
    {"model.optim.", ""},
    {"model.tokenizer.", ""},
    {"model.nsys_profile.", ""},
    {"model.nsys_profile", ""},
    {"model.mcore_gpt", ""},
    {"model.pre_process", ""},
    {"model.post_process", ""},
    {"model.megatron_amp_O2", ""},
    {"model.grad_allreduce_chunk_size_mb", ""},
    {"model.grad_div_ar_fusion", ""},
    {"model.gradient_as_bucket_view", ""},
    {"model.apex_transformer_log_level", ""},
    {"model.resume_from_checkpoint", ""},
    {"model.transformer_block_type", ""},
    {"model.headscale", ""},
    {"model.activation", ""},
    {"model.normalization", ""},
    {"model.do_layer_norm_weight_decay", ""},
    {"model.use_scaled_init_method", ""},
    {"model.overlap_p2p_comm", ""},
    {"model.batch_p2p_comm", ""},
    {"model.num_micro_batches_with_partial_activation_checkpoints", ""},
    {"model.transformer_engine", ""},
    {"model.ub_tp_comm_overlap*", ""},
    {"model.use_emha", ""},
    {"model.use_flash_attention", ""},
    {"model.sync_batch_comm", ""},
    {"model.nccl_communicator_config_path", ""},
    {"model.dist_ckpt_*", ""},
    {"model.fsdp*", ""},
    {"model.reduce_amax", ""},
    {"model.get_attention_mask_from_fusion", ""},
    {"model.", "model."},
};

// clang-format on

class NemoReader {
public:
  explicit NemoReader(const Value& tree)
      : tree_(tree)
      , second_(tree.find_path("model.config") != nullptr) {}

  Value run() {
    move_all(tree_.as_table(), "");
    second_ ? second() : first();
    for (const char* section : {"model", "train", "optimizer", "scheduler"}) {
      if (to_.find(section) == nullptr) {
        to_.as_table().set(section, Table{});
      }
    }
    return std::move(to_);
  }

private:
  [[nodiscard]] const Value* find(const char* path) const {
    const Value* found = tree_.find_path(path);
    return found == nullptr || found->is_null() ? nullptr : found;
  }

  [[nodiscard]] std::string text(const char* path, const std::string& otherwise = "") const {
    const Value* found = find(path);
    return found == nullptr ? otherwise : found->is_string() ? found->as_string() : to_text(*found);
  }

  void set(const std::string& path, Value value, const Value* from = nullptr) {
    if (from != nullptr) {
      value.origin = from->origin;
    }
    const auto [section, key] = split_key(path);
    Table& top = to_.as_table();
    if (top.find(section) == nullptr) {
      top.set(section, Table{});
    }
    top.find(section)->as_table().set(key, std::move(value));
  }

  /// The setting that `${model.x}` or `${.x}` stands for; null if the file has none of this name.
  const Value* meant(const std::string& path, const Value& value) const {
    if (!value.is_string() || !value.as_string().starts_with("${")) {
      return &value;
    }
    const std::string& text = value.as_string();
    if (!text.ends_with("}") || text.find_first_of(":$ {", 2) != std::string::npos) {
      return nullptr;
    }
    std::string other = text.substr(2, text.size() - 3);
    if (other.starts_with('.')) {
      other = path.substr(0, path.rfind('.')) + other;
    }
    const Value* found = tree_.find_path(other);
    return found == nullptr || found->is_null() || found->is_string() ? nullptr : found;
  }

  void move_all(const Table& table, const std::string& above) {
    for (const auto& entry : table) {
      const std::string path = above + (above.empty() ? "" : ".") + entry.key;
      const bool section = entry.value.is_table() && entry.value.find("_call_") == nullptr &&
                           entry.value.find("_args_") == nullptr;
      if (section) {
        move_all(entry.value.as_table(), path);
      } else if (!entry.value.is_null() && (entry.key != "_target_" || path == "model.config._target_")) {
        move(path, entry.value);
      }
    }
  }

  void move(const std::string& path, const Value& value) {
    const Value* known = meant(path, value);
    if (known == nullptr || (known->is_string() && known->as_string() == "???")) {
      return;
    }
    const auto apply = [&](std::string_view from, std::string_view to) {
      const bool below = from.ends_with('.') && path.starts_with(from);
      const bool any = from.ends_with('*') && path.starts_with(from.substr(0, from.size() - 1));
      if (!below && !any && path != from) {
        return false;
      }
      if (!to.empty()) {
        const std::string rest = below ? path.substr(from.size()) : "";
        set(std::string(to) + rest, *known, &value);
      }
      return true;
    };
    for (const Move& row :
         second_ ? std::span<const Move>(kSecond) : std::span<const Move>(kFirst)) {
      if (apply(row.from, row.to)) {
        return;
      }
    }
    set("other." + path, *known, &value); // and is named as not known
  }

  void schedule(const Value* name, int64_t constant) {
    const std::string kind = name == nullptr ? "" : name->as_string();
    const std::pair<const char*, const char*> kinds[] = {
        {"CosineAnnealing", "cosine"},
        {"InverseSquareRoot", "inverse-square-root"},
        {"WarmupHoldPolicy", "constant"},
        {"LinearAnnealing", "linear"},
        {"WarmupAnnealing", "linear"},
        {"PolynomialDecayAnnealing", "linear"}};
    if (name == nullptr) {
      set("scheduler.lr_decay_style", "constant");
      return;
    }
    for (const auto& [theirs, style] : kinds) {
      if (kind.find(theirs) != std::string::npos) {
        set("scheduler.lr_decay_style", style, name);
        const Value* steps = find("trainer.max_steps");
        if (constant > 0 && steps != nullptr && steps->is_integer()) {
          set("scheduler.lr_decay_iters", steps->as_integer() - constant, name);
        }
        return;
      }
    }
    refuse_value(
        *name,
        "the schedule " + kind + " has no equivalent",
        "known are CosineAnnealing, InverseSquareRoot, LinearAnnealing and WarmupAnnealing"
    );
  }

  static int64_t whole(const Value* value) {
    return value != nullptr && value->is_integer() ? value->as_integer() : 0;
  }

  /// Fills in what the file leaves to the model's class.
  void named_class() {
    const std::string name = text("model.config._target_");
    for (const auto& entry : nemo_class(name.substr(name.rfind('.') + 1))) {
      if (tree_.find_path("model.config." + entry.key) == nullptr) {
        set("model." + entry.key, entry.value, find("model.config._target_"));
      }
    }
  }

  void second() {
    named_class();
    const Value* name = find("optim.lr_scheduler._target_");
    schedule(name, whole(find("optim.lr_scheduler.constant_steps")));
    if (const Value* least = find("optim.lr_scheduler.min_lr")) {
      set("optimizer.min_lr", *least, least);
    }
    if (text("data._target_").find("Mock") != std::string::npos) {
      set("dataset.mock", true, find("data._target_"));
    }
    if (const Value* model = find("data.tokenizer.pretrained_model_name")) {
      set("tokenizer.tokenizer_type", "HuggingFaceTokenizer", model);
      set("tokenizer.tokenizer_model", *model, model);
    }
    if (find("trainer.plugins.precision") != nullptr) {
      precision("trainer.plugins.precision");
    }
  }

  void first() {
    precision("trainer.precision");
    schedule(find("model.optim.sched.name"), whole(find("model.optim.sched.constant_steps")));
    if (const Value* name = find("model.optim.name")) {
      const std::string& kind = name->as_string();
      const bool adam = kind.find("adam") != std::string::npos;
      set("optimizer.optimizer", adam ? "adam" : kind, name);
      if (kind.starts_with("distributed")) {
        set("optimizer.use_distributed_optimizer", true, name);
      }
    }
    if (const Value* betas = find("model.optim.betas"); betas != nullptr && betas->is_array()) {
      for (size_t i = 0; i < std::min<size_t>(2, betas->as_array().size()); ++i) {
        set("optimizer.adam_beta" + std::to_string(i + 1), betas->as_array()[i], betas);
      }
    }
    norm();
    activation();
    tokenizer();
    const std::string impl = text("model.data.data_impl");
    if (const Value* given = find("model.data.data_impl")) {
      set("dataset.mock", impl == "mock", given);
    }
    if (const Value* saves = to_.find_path("checkpoint.save");
        saves != nullptr && to_.find_path("checkpoint.save_interval") == nullptr) {
      const Value* every = find("trainer.val_check_interval"); // checkpoints follow evaluations
      if (every != nullptr && every->is_integer()) {
        set("checkpoint.save_interval", *every, every);
      }
    }
  }

  void precision(const char* path) {
    const std::string word = text(path);
    set("model.bf16", word.starts_with("bf16"), find(path));
    set("model.fp16", word.starts_with("16") || word.starts_with("fp16"), find(path));
  }

  void norm() {
    const std::string kind = text("model.normalization", "layernorm");
    const Value* given = find("model.normalization");
    const bool rms = kind == "rmsnorm";
    if (!rms && kind != "layernorm" && kind != "layernorm1p" && kind != "low_precision_layernorm") {
      refuse_value(
          *given,
          "model.normalization is " + kind + ", which has no equivalent",
          "known are layernorm, layernorm1p, low_precision_layernorm and rmsnorm"
      );
    }
    set("model.normalization", rms ? "RMSNorm" : "LayerNorm", given);
    if (kind == "layernorm1p") {
      set("model.layernorm_zero_centered_gamma", true, given);
    }
  }

  void activation() {
    const Value* given = find("model.activation");
    if (given == nullptr) {
      return;
    }
    std::string kind = text("model.activation");
    kind = kind.starts_with("fast-") ? kind.substr(5) : kind;
    const std::pair<const char*, const char*> kinds[] = {
        {"swiglu", "silu"}, {"geglu", "gelu"}, {"gelu", "gelu"}, {"squared-relu", "squared_relu"}};
    for (const auto& [word, function] : kinds) {
      if (kind == word) {
        set("model.activation_func", Table{{"_target_", function}}, given);
        set("model.gated_linear_unit", kind.ends_with("glu"), given);
        set("model.bias_activation_fusion", true, given);
        return;
      }
    }
    refuse_value(
        *given,
        "model.activation is " + kind + ", which has no equivalent",
        "known are gelu, geglu, swiglu and squared-relu"
    );
  }

  void tokenizer() {
    const Value* model = find("model.tokenizer.model");
    const Value* type = find("model.tokenizer.type");
    const std::string library = text("model.tokenizer.library", "megatron");
    if (library == "huggingface" && type != nullptr) {
      set("tokenizer.tokenizer_type", "HuggingFaceTokenizer", type);
      set("tokenizer.tokenizer_model", *type, type);
    } else if (library == "sentencepiece" && model != nullptr) {
      set("tokenizer.tokenizer_type", "SentencePieceTokenizer", model);
      set("tokenizer.tokenizer_model", *model, model);
    } else if (type != nullptr) {
      set("tokenizer.tokenizer_type", *type, type);
    }
    for (const char* name : {"vocab_file", "merge_file"}) {
      const std::string path = std::string("model.tokenizer.") + name;
      if (const Value* file = find(path.c_str())) {
        set(std::string("tokenizer.") + name, *file, file);
      }
    }
  }

  const Value& tree_;
  bool second_;
  Value to_ = Table{};
};

} // namespace

bool is_nemo(const Value& tree) {
  const Value *trainer = tree.find("trainer"), *model = tree.find("model");
  return trainer != nullptr && trainer->is_table() && model != nullptr && model->is_table() &&
         (model->find("config") != nullptr || model->find("micro_batch_size") != nullptr ||
          model->find("num_layers") != nullptr);
}

Value bridge_of_nemo(const Value& tree) {
  return NemoReader(tree).run();
}

} // namespace mh
