#include "core/settings/bridge.hpp"

#include "core/base/text.hpp"
#include "core/import/given.hpp"
#include "core/import/importer.hpp"
#include "core/megatron/arguments.hpp"
#include "core/settings/foreign.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <utility>

namespace mh {

namespace {

/// The way of a setting that has not the name of an argument.
enum class Setting : uint8_t {
  value,    ///< the argument has its value
  if_true,  ///< the argument is given where it is true
  if_false, ///< ... where it is false
  ignored,  ///< no number depends on it
  changes,  ///< no equivalent: `argument` says why
  by_code   ///< read together with others
};

struct BridgeKey {
  std::string_view name; ///< "model.num_moe_experts"; a * stands for any text
  Setting becomes;
  std::string_view argument{}; ///< its name, or a reason
};

using enum Setting;

// clang-format off
constexpr BridgeKey kKeys[] = {
    {"model.num_moe_experts", value, "num-experts"},
    {"model.num_layers_in_first_pipeline_stage", value, "decoder-first-pipeline-num-layers"},
    {"model.num_layers_in_last_pipeline_stage", value, "decoder-last-pipeline-num-layers"},
    {"model.virtual_pipeline_model_parallel_size", value, "num-virtual-stages-per-pipeline-rank"},
    {"model.seq_len_interpolation_factor", value, "rotary-seq-len-interpolation-factor"},
    {"model.original_max_position_embeddings", value, "yarn-original-max-position-embeddings"},
    {"model.yarn_rotary_scaling_factor", value, "rotary-scaling-factor"},
    {"model.beta_fast", value, "yarn-beta-fast"},
    {"model.beta_slow", value, "yarn-beta-slow"},
    {"model.add_bias_linear", if_false, "disable-bias-linear"},
    {"model.share_embeddings_and_output_weights", if_false, "untie-embeddings-and-output-weights"},
    {"model.layernorm_zero_centered_gamma", if_true, "apply-layernorm-1p"},
    {"model.rope_scaling", if_true, "use-rope-scaling"},
    {"model.heterogeneous_block_specs", if_true, "heterogeneous-layers-config-path"},
    {"model.activation_func", by_code},
    {"model.gated_linear_unit", by_code},
    {"model.bias_activation_fusion", by_code},
    {"model.num_query_groups", by_code},
    {"model.window_size", by_code},
    {"model.scale_factor", by_code}, // the rotary scaling of Llama 3.1
    {"model.low_freq_factor", by_code},
    {"model.high_freq_factor", by_code},
    {"model.old_context_len", by_code},
    {"model.cp_comm_type", by_code},
    {"model.softmax_scale", changes, "scores are divided by the square root of head_dim, or of model.score_dim"},
    {"model.fp4", changes, "there is no 4-bit precision"},
    {"model.use_kitchen", ignored},
    {"model.fp8", by_code},
    {"mixed_precision.fp8", by_code},
    {"mixed_precision.fp32", ignored},
    {"mixed_precision.*_dtype", ignored},
    {"mixed_precision.autocast*", ignored},
    {"mixed_precision.grad_reduce_in_fp32", if_false, "grad-reduce-in-bf16"},
    {"model.*_func", ignored},
    {"model.*_dtype", ignored},
    {"model.*init_method", ignored},
    {"model.*fusion*", ignored},
    {"model.*fused*", ignored},
    {"model.*autocast*", ignored},
    {"model.*layer_spec", ignored},
    {"model.tp_comm_*", ignored},
    {"model.cpu_offloading*", ignored},
    {"model.cuda_graph*", ignored},
    {"model.batch_p2p_*", ignored},
    {"model.overlap_p2p_comm*", ignored},
    {"model.hf_*", ignored},
    {"model.fp8_param", ignored},
    {"model.fp8_wgrad", ignored},
    {"model.fp8_*attention", ignored},
    {"model.fp4_param", ignored},
    {"model.moe_token_dropping", ignored},
    {"model.attention_backend", ignored},
    {"model.parallel_output", ignored},
    {"model.should_pad_vocab", ignored},
    {"model.timers", ignored},
    {"model.generation_config", ignored},
    {"model.variable_seq_lengths", ignored},
    {"model.deallocate_pipeline_outputs", ignored},
    {"model.microbatch_group_size_per_vp_stage", ignored},
    {"model.num_microbatches_with_partial_activation_checkpoints", ignored},
    {"model.async_tensor_model_parallel_allreduce", ignored},
    {"model.barrier_with_L1_time", ignored},
    {"model.clone_scatter_output_in_embedding", ignored},
    {"model.scatter_embedding_sequence_parallel", ignored},
    {"model.activation_func_fp8_input_store", ignored},
    {"model.disable_parameter_transpose_cache", ignored},
    {"model.hetereogenous_dist_checkpoint", ignored},
    {"model.memory_efficient_layer_norm", ignored},
    {"model.persist_layer_norm", ignored},
    {"model.perform_initialization", ignored},
    {"model.restore_modelopt_state", ignored},
    {"model.tp_only_amax_red", ignored},
    {"model.mtp_enabled", ignored},
    {"model.use_te_rng_tracker", ignored},
    {"model.use_mamba_mem_eff_path", ignored},
    {"model.use_transformer_engine_full_layer_spec", ignored},
    {"model.use_inference_optimized_layers", ignored},
    {"model.inference_*", ignored},
    {"model.quant_recipe", ignored},

    {"optimizer.exp_avg_dtype", by_code},
    {"optimizer.exp_avg_sq_dtype", by_code},
    {"optimizer.*_dtype", ignored},
    {"optimizer.decoupled_weight_decay", by_code},
    {"optimizer.pin_cpu_*", ignored},
    {"optimizer.store_param_remainders", ignored},
    {"optimizer.barrier_with_L1_time", ignored},
    {"optimizer.timers", ignored},
    {"optimizer.muon_use_nesterov", if_true, "muon-use-nesterov"},
    {"optimizer.muon_split_qkv", ignored},
    {"optimizer_config_override_provider.*", ignored},

    {"ddp.grad_reduce_in_fp32", if_false, "grad-reduce-in-bf16"},
    {"ddp.bucket_size", value, "ddp-bucket-size"},
    {"ddp.use_custom_fsdp", if_true, "use-megatron-fsdp"},
    {"ddp.*", ignored},
    {"comm_overlap.bucket_size", value, "ddp-bucket-size"},
    {"comm_overlap.*", ignored},
    {"dist.distributed_timeout_minutes", value, "distributed-timeout-minutes"},
    {"dist.use_tp_pp_dp_mapping", if_true, "use-tp-pp-dp-mapping"},
    {"dist.use_megatron_fsdp", if_true, "use-megatron-fsdp"},
    {"dist.*", ignored},

    {"scheduler.lr_decay_steps", ignored}, // made of the same in iterations
    {"scheduler.lr_warmup_steps", ignored},
    {"scheduler.wd_incr_steps", ignored},
    {"scheduler.wsd_decay_steps", ignored},
    {"scheduler.max_steps", value, "lr-decay-iters"},

    {"dataset.sequence_length", value, "seq-length"},
    {"dataset.path_to_cache", value, "data-cache-path"},
    {"dataset.mmap_bin_files", if_false, "no-mmap-bin-files"},
    {"dataset.data_sharding", if_false, "no-data-sharding"},
    {"dataset.mock", if_true, "mock-data"},
    {"dataset.blend", by_code},
    {"dataset.blend_per_split", by_code},
    {"dataset.data_path", by_code},
    {"dataset.random_seed", by_code},
    {"dataset.tokenizer", ignored},
    {"dataset.split_matrix", ignored},
    {"dataset.*mask*dataset*", ignored},
    {"dataset.*attention_mask_from*", ignored},
    {"dataset.create_attention_mask", ignored},
    {"dataset.drop_last_partial_validation_sequence", ignored},
    {"dataset.add_extra_token_to_sequence", ignored},
    {"dataset.sequences_per_dataset", ignored},
    {"dataset.token_dtype_code", ignored},
    {"dataset.*_parallel_size", ignored},
    {"dataset.*npy_index_mmap", ignored},
    {"dataset.fast_cache_load", ignored},
    {"dataset.pin_memory", ignored},
    {"dataset.persistent_workers", ignored},
    {"dataset.trust_remote_code", ignored},

    {"tokenizer.*kwargs*", ignored},
    {"tokenizer.special_tokens", ignored},
    {"tokenizer.image_tag_type", ignored},
    {"tokenizer.*prompt_format", ignored},
    {"tokenizer.metadata_path", ignored},

    {"train.check_optimizer_step_success", ignored},
    {"train.skip_sync_grad_norm_across_mp", ignored},
    {"train.manual_gc*", ignored},
    {"train.exit_signal*", ignored},
    {"train.num_epochs", by_code},
    {"train.eval_at_step_zero", ignored},
    {"validation.eval_at_step_zero", ignored},

    {"checkpoint.save", value, "save"},
    {"checkpoint.save_interval", value, "save-interval"},
    {"checkpoint.save_retain_interval", value, "save-retain-interval"},
    {"checkpoint.async_save", if_true, "async-save"},
    {"checkpoint.load", value, "load"},
    {"checkpoint.pretrained_checkpoint", value, "pretrained-checkpoint"},
    {"checkpoint.most_recent_k", by_code},
    {"checkpoint.*", ignored},

    {"logger.log_interval", value, "log-interval"},
    {"logger.log_params_norm", if_true, "log-params-norm"},
    {"logger.log_progress", if_true, "log-progress"},
    {"logger.wandb_exp_name", value, "wandb-exp-name"},
    {"logger.*", ignored},
    {"rng.*rng_tracker", ignored},
    {"rerun_state_machine.check_for_spiky_loss", if_true, "check-for-spiky-loss"},
    {"rerun_state_machine.*", ignored},
    {"ft.*", ignored},
    {"straggler.*", ignored},
    {"nvrx_straggler.*", ignored},
    {"inprocess_restart.*", ignored},
    {"profiling.*", ignored},
    {"tensor_inspect.*", ignored},
    {"env_vars.*", ignored},
    {"launcher.*", by_code}, // NeMo's trainer
    {"data_parallel_size", ignored},
    {"*._target_", ignored},
    {"_target_", ignored},
};

// clang-format on

/// The last name of what a setting makes: "silu" of {_target_: torch.nn.functional.silu}.
std::string target_of(const Value* value) {
  if (value == nullptr) {
    return "";
  }
  const Value* target = value->is_table() ? value->find("_target_") : value;
  if (target == nullptr || !target->is_string()) {
    return "";
  }
  const std::string& name = target->as_string();
  return name.substr(name.rfind('.') + 1); // without a dot from the start
}

class BridgeReader {
public:
  explicit BridgeReader(const Value& tree)
      : tree_(tree) {}

  ImportedRecipe run() {
    refuse_others();
    find_conditions();
    for (const auto& section : tree_.as_table()) {
      if (section.key != "mixed_precision") {
        take_section(section);
      }
    }
    if (const auto* precision = tree_.as_table().entry("mixed_precision")) {
      take_section(*precision); // it has the last word
    }
    numbers();
    model();
    data();
    const std::string target = target_of(tree_.find_path("model._target_"));
    const bool hybrid = has("model.hybrid_layer_pattern") || has("model.hybrid_override_pattern");
    const ShellCommand command{launcher(), hybrid ? "pretrain_mamba.py" : "pretrain_gpt.py", {}};
    if (find("model.num_layers") == nullptr && !hybrid) {
      const Value* model = find("model");
      refuse_value(
          model != nullptr ? *model : tree_,
          "model" + (target.empty() ? "" : " is a " + target + ", and") +
              " says no num_layers: its sizes are not in this file",
          "add num_layers, hidden_size, num_attention_heads, ...; Megatron-Bridge's run_config.yaml, "
          "next to its checkpoints, has them all"
      );
    }
    ImportedRecipe recipe = Importer(command, GivenArguments(std::move(given_))).run();
    for (auto& [key, value, path] : direct_) {
      recipe.set(key, std::move(value), path);
    }
    recipe.comments.insert(recipe.comments.begin(), comments_.begin(), comments_.end());
    if (!harmless_.empty()) {
      recipe.comments.push_back(
          "without an equivalent, and no number depends on them: " + join(harmless_)
      );
    }
    return recipe;
  }

private:
  struct Direct {
    std::string key;
    Value value;
    std::string path;
  };

  [[nodiscard]] const Value* find(const std::string& path) const {
    const Value* found = tree_.find_path(path);
    return found == nullptr || found->is_null() ? nullptr : found;
  }

  [[nodiscard]] bool has(const std::string& path) const {
    const Value* found = find(path);
    return found != nullptr && !is_nothing(*found);
  }

  [[nodiscard]] std::string text(const std::string& path) const {
    const Value* found = find(path);
    return found != nullptr && found->is_string() ? found->as_string() : "";
  }

  void refuse_others() const {
    const auto holds = [](const std::string& target, std::initializer_list<const char*> words) {
      return std::any_of(words.begin(), words.end(), [&](const char* word) {
        return target.find(word) != std::string::npos;
      });
    };
    if (const Value* peft = find("peft")) {
      refuse_value(
          *peft, "peft trains adapters, for which there is no equivalent: all weights are trained"
      );
    }
    const std::string model = target_of(find("model._target_"));
    if (holds(model, {"VL", "MIMO", "Mimo", "Omni", "Audio", "Vision"})) {
      refuse_value(
          *find("model._target_"),
          "model is a " + model + ", of images or sounds, for which there is no architecture yet"
      );
    }
    if (holds(model, {"T5"})) {
      refuse_value(
          *find("model._target_"),
          "model is a " + model + ", which is not read here",
          "give the arguments of pretrain_t5.py"
      );
    }
    const std::string data = target_of(find("dataset._target_"));
    if (holds(data, {"SFT", "Finetun", "HF", "Energon", "VLM", "DPO"})) {
      refuse_value(
          *find("dataset._target_"),
          "dataset is a " + data + ", of conversations or images, for which there is no equivalent",
          "megahost data prepare --template makes samples of conversations; take the section dataset "
          "out to import the rest"
      );
    }
  }

  /// Finds which parts this training has: settings of others say nothing, by patterns of names.
  void find_conditions() {
    const std::string precision = text("mixed_precision");
    const bool fp8 = has("model.fp8") || has("mixed_precision.fp8") ||
                     precision.find("fp8") != std::string::npos;
    const bool fp16 =
        has("model.fp16") || has("mixed_precision.fp16") || precision.starts_with("fp16");
    const bool latent = has("model.multi_latent_attention");
    const bool hybrid = has("model.hybrid_layer_pattern") || has("model.hybrid_override_pattern");
    const Value* kind = find("model.position_embedding_type");
    const bool rotary =
        latent || (kind != nullptr && (*kind == Value("rope") || *kind == Value("yarn")));
    const std::string optimizer = text("optimizer.optimizer");
    const std::string granularity = text("model.recompute_granularity");
    const Value* stages = find("model.pipeline_model_parallel_size");
    const bool pipeline = stages != nullptr && stages->is_number() && stages->as_number() > 1;
    const std::string growth = text("scheduler.weight_decay_incr_style");
    conditions_ = {
        {"*.fp8_*", fp8},
        {"*.loss_scale*", fp16},
        {"*.initial_loss_scale", fp16},
        {"*.min_loss_scale", fp16},
        {"*.hysteresis", fp16},
        {"model.moe_*", has("model.num_moe_experts")},
        {"model.num_moe_experts", has("model.num_moe_experts")},
        {"model.expert_tensor_parallel_size", has("model.num_moe_experts")},
        {"model.mamba_*", hybrid},
        {"model.mtp_*", has("model.mtp_num_layers")},
        {"model.*_lora_rank", latent},
        {"model.qk_head_dim", latent},
        {"model.qk_pos_emb_head_dim", latent},
        {"model.v_head_dim", latent},
        {"model.mscale*", latent},
        {"model.beta_*", latent},
        {"model.original_max_position_embeddings", latent},
        {"model.rope_type", latent},
        {"model.cache_mla_latents", latent},
        {"model.rotary_scaling_factor", latent},
        {"model.rotary_*", rotary},
        {"model.rope_scaling*", rotary},
        {"model.yarn_*", kind != nullptr && *kind == Value("yarn")},
        {"model.recompute_modules", granularity == "selective"},
        {"model.recompute_method", granularity == "full"},
        {"model.recompute_num_layers", granularity == "full"},
        {"model.virtual_pipeline_model_parallel_size", pipeline},
        {"model.account_for_*", pipeline},
        {"model.window_attn_skip_freq", has("model.window_size")},
        {"optimizer.sgd_momentum", optimizer == "sgd"},
        {"optimizer.adam_*", optimizer != "sgd" && optimizer != "lion"},
        {"optimizer.lion_*", optimizer == "lion"},
        {"optimizer.muon_*", optimizer.find("muon") != std::string::npos},
        {"optimizer.exp_avg_*", has("optimizer.use_precision_aware_optimizer")},
        {"ddp.data_parallel_sharding_strategy",
         has("ddp.use_megatron_fsdp") || has("ddp.use_custom_fsdp") ||
             has("dist.use_megatron_fsdp")},
        {"scheduler.lr_wsd_*", text("scheduler.lr_decay_style") == "WSD"},
        {"scheduler.start_weight_decay", growth == "linear" || growth == "cosine"},
        {"scheduler.lr_warmup_iters", has("scheduler.lr_warmup_iters")},
        {"scheduler.lr_warmup_samples", has("scheduler.lr_warmup_samples")},
        {"scheduler.max_steps", !has("scheduler.lr_decay_iters")},
        {"train.train_iters", !has("train.train_samples")}, // iters are made of them
    };
  }

  [[nodiscard]] bool applies(const std::string& path) const {
    return std::none_of(conditions_.begin(), conditions_.end(), [&](const auto& condition) {
      return !condition.second && fnmatch(condition.first, path.c_str(), 0) == 0;
    });
  }

  void take_section(const Table::Entry& section) {
    if (section.value.is_null()) {
      return;
    }
    if (section.key == "mixed_precision" && section.value.is_string()) {
      named_precision(section.value);
      return;
    }
    if (!section.value.is_table()) {
      take(section.key, section.key, section.value);
      return;
    }
    for (const auto& field : section.value.as_table()) {
      const std::string path = section.key + "." + field.key;
      const bool parts = field.key.starts_with("transformer") && field.value.is_table() &&
                         field.value.find("num_layers") != nullptr; // a model's, in newer versions
      if (parts) {
        take_section({section.key, field.value});
      } else if (!field.value.is_null() && !field.key.starts_with("_") && applies(path)) {
        take(path, field.key, field.value);
      }
    }
  }

  void take(const std::string& path, const std::string& field, const Value& value) {
    const auto row = std::find_if(std::begin(kKeys), std::end(kKeys), [&](const BridgeKey& key) {
      return fnmatch(std::string(key.name).c_str(), path.c_str(), 0) == 0;
    });
    if (is_argument_of(path, field)) {
      take_argument(path, field, value);
    } else if (row == std::end(kKeys)) {
      take_argument(path, field, value);
    } else if (row->becomes == ignored) {
      if (!is_nothing(value)) {
        harmless_.push_back(path);
      }
    } else if (row->becomes == changes) {
      if (!is_nothing(value)) {
        const std::string why(row->argument);
        comments_.push_back(path + ": no equivalent, training differs: " + why);
      }
    } else if (row->becomes != by_code) {
      const std::string argument(row->argument);
      if (row->becomes == Setting::value) {
        give(argument, words_of(path, value), path);
      } else {
        flag(argument, boolean(path, value) == (row->becomes == if_true), path);
      }
    }
  }

  /// Sections whose other fields change nothing have some with the names of arguments.
  static bool is_argument_of(const std::string& path, const std::string& field) {
    constexpr const char* kOwn[] = {
        "overlap_grad_reduce",
        "overlap_param_gather",
        "use_distributed_optimizer",
        "use_megatron_fsdp",
        "data_parallel_sharding_strategy"};
    return (path.starts_with("ddp.") || path.starts_with("comm_overlap.")) &&
           std::find(std::begin(kOwn), std::end(kOwn), field) != std::end(kOwn);
  }

  /// A setting that has an argument's name.
  void take_argument(const std::string& path, const std::string& field, const Value& value) {
    std::string name = field;
    std::replace(name.begin(), name.end(), '_', '-');
    if (const MegatronArgument* known = known_argument(name)) {
      if (known->becomes == Becomes::nothing || known->becomes == Becomes::same) {
        if (!is_nothing(value)) {
          harmless_.push_back(path);
        }
      } else if (known->takes == Takes::none) {
        flag(std::string(known->name), boolean(path, value), path);
      } else if (known->becomes != Becomes::changes || !is_nothing(value)) {
        give(std::string(known->name), words_of(path, value), path);
      }
      return;
    }
    if (const MegatronArguments* group = without_equivalent(name)) {
      if (!is_nothing(value) && group->becomes == Becomes::changes && !is_usual(field, value)) {
        comments_.push_back(
            path + ": no equivalent, training differs: " + std::string(group->reason)
        );
      } else if (!is_nothing(value)) {
        harmless_.push_back(path);
      }
      return;
    }
    std::vector<std::string> names;
    for (const BridgeKey& key : kKeys) {
      names.emplace_back(key.name);
    }
    for (const MegatronArgument& argument : megatron_arguments()) {
      std::string spelled = path.substr(0, path.find('.') + 1) + std::string(argument.name);
      std::replace(spelled.begin(), spelled.end(), '-', '_');
      names.push_back(std::move(spelled));
    }
    const auto meant = nearest(path, names);
    comments_.push_back(
        path + ": not known here" + (meant ? "; did you mean " + *meant + "?" : "")
    );
  }

  /// Whether it is a default that a dump writes out.
  static bool is_usual(const std::string& field, const Value& value) {
    const std::pair<const char*, Value> usual[] = {
        {"softmax_type", "vanilla"},
        {"qk_clip_alpha", 0.5},
        {"qk_clip_threshold", 100},
        {"fp4_recipe", "nvfp4"},
        {"fp8_interval", 1},
        {"mamba_state_dim", 128}};
    return std::any_of(std::begin(usual), std::end(usual), [&](const auto& pair) {
      return field == pair.first && value == pair.second;
    });
  }

  static bool boolean(const std::string& path, const Value& value) {
    if (!value.is_boolean()) {
      refuse_value(value, path + " is " + describe(value.type()) + ", expected true or false");
    }
    return value.as_boolean();
  }

  static std::string word_of(const std::string& path, const Value& value) {
    if (!value.is_number() && !value.is_string()) {
      refuse_value(value, path + " is " + describe(value.type()) + ", expected a number or a text");
    }
    return value.is_string() ? value.as_string() : to_text(value);
  }

  static std::vector<std::string> words_of(const std::string& path, const Value& value) {
    std::vector<std::string> words;
    if (value.is_array() && path == "model.moe_layer_freq") {
      return {to_text(value)};
    }
    if (!value.is_array()) {
      return {word_of(path, value)};
    }
    for (const Value& item : value.as_array()) {
      words.push_back(word_of(path, item));
    }
    return words;
  }

  void give(const std::string& argument, std::vector<std::string> values, const std::string& path) {
    if (values.empty()) {
      return;
    }
    take_back(argument);
    const std::string said = path + " = " + join(values, " ");
    given_.push_back({known_argument(argument), argument, std::move(values), said});
  }

  void flag(const std::string& argument, bool is_given, const std::string& path) {
    take_back(argument);
    if (is_given) {
      given_.push_back({known_argument(argument), argument, {}, path});
    }
  }

  void take_back(const std::string& argument) {
    std::erase_if(given_, [&](const GivenArgument& other) { return other.name == argument; });
  }

  /// "bf16_mixed", "bf16_with_fp8_current_scaling_mixed".
  void named_precision(const Value& value) {
    const std::string& name = value.as_string();
    const auto holds = [&](const char* word) { return name.find(word) != std::string::npos; };
    const bool fp8 = holds("fp8"), delayed = holds("delayed"), current = holds("current");
    if (holds("fp4") || holds("mxfp8") || (fp8 && !delayed && !current)) {
      refuse_value(
          value,
          "mixed_precision is " + name + ", which has no equivalent",
          "precision fp8 scales whole tensors, delayed or current"
      );
    }
    const char* kind = name.starts_with("fp16")   ? "fp16"
                       : name.starts_with("bf16") ? "bf16"
                                                  : nullptr;
    for (const char* one : {"fp16", "bf16"}) {
      flag(one, kind == one, "mixed_precision");
    }
    if (fp8) {
      give("fp8-format", {"hybrid"}, "mixed_precision");
      give("fp8-recipe", {delayed ? "delayed" : "tensorwise"}, "mixed_precision");
    }
  }

  void numbers() {
    for (const char* path : {"model.fp8", "mixed_precision.fp8"}) {
      if (has(path)) {
        give("fp8-format", words_of(path, *find(path)), path);
      }
    }
    for (const char* name : {"exp_avg_dtype", "exp_avg_sq_dtype"}) {
      const std::string path = std::string("optimizer.") + name;
      if (has(path) && applies(path)) {
        const std::string type = target_of(find(path));
        std::string argument = name;
        std::replace(argument.begin(), argument.end(), '_', '-');
        give(argument, {type == "bfloat16" ? "bf16" : type == "float32" ? "fp32" : type}, path);
      }
    }
    const Value* decoupled = find("optimizer.decoupled_weight_decay");
    if (decoupled != nullptr && decoupled->is_boolean() && !decoupled->as_boolean()) {
      direct_.push_back({"optimizer.use", "adam", "optimizer.decoupled_weight_decay"});
    }
    if (has("train.num_epochs")) {
      comments_.push_back(
          "train.num_epochs: no equivalent: train.iters or samples says how long a run is"
      );
    }
    const Value* newest = find("checkpoint.most_recent_k");
    if (newest != nullptr && newest->is_integer() && newest->as_integer() > 0) {
      direct_.push_back({"checkpoint.keep", *newest, "checkpoint.most_recent_k"});
    }
  }

  void model() {
    if (const Value* groups = find("model.num_query_groups")) {
      const Value* heads = find("model.num_attention_heads");
      if (heads != nullptr && !(*heads == *groups)) {
        flag("group-query-attention", true, "model.num_query_groups");
        give(
            "num-query-groups",
            words_of("model.num_query_groups", *groups),
            "model.num_query_groups"
        );
      }
    }
    if (has("model.cp_comm_type")) {
      const auto words = words_of("model.cp_comm_type", *find("model.cp_comm_type"));
      give("cp-comm-type", {words.front()}, "model.cp_comm_type");
    }
    if (const Value* window = find("model.window_size")) {
      const auto sides = words_of("model.window_size", *window);
      give("window-size", {join(sides, ",")}, "model.window_size");
    }
    if (has("model.scale_factor") && !has("model.rope_scaling")) { // Llama 3.1 and later
      flag("use-rope-scaling", true, "model.scale_factor");
      give(
          "rope-scaling-factor",
          words_of("model.scale_factor", *find("model.scale_factor")),
          "model.scale_factor"
      );
      const std::pair<const char*, const char*> more[] = {
          {"low_freq_factor", "model.rope_low_freq"},
          {"high_freq_factor", "model.rope_high_freq"},
          {"old_context_len", "model.rope_original_length"}};
      for (const auto& [field, key] : more) {
        if (const Value* value = find(std::string("model.") + field)) {
          direct_.push_back({key, *value, std::string("model.") + field});
        }
      }
    }
    activation();
  }

  void activation() {
    const Value* function = find("model.activation_func");
    const std::string name = target_of(function);
    if (name.empty()) {
      return; // the argument says it, or the default
    }
    const bool gated = has("model.gated_linear_unit");

    const struct {
      std::string_view name;
      bool gated;
      const char *argument, *activation;
    } known[] = {
        {"silu", true, "swiglu", nullptr},
        {"swish", true, "swiglu", nullptr},
        {"gelu", true, "swiglu", "geglu"},
        {"fast_gelu", true, "swiglu", "geglu_tanh"},
        {"quick_gelu", true, "quick-geglu", nullptr},
        {"squared_relu", false, "squared-relu", nullptr},
        {"openai_gelu", false, "openai-gelu", nullptr},
        {"fast_gelu", false, nullptr, "gelu_tanh"},
        {"gelu", false, nullptr, has("model.bias_activation_fusion") ? "gelu_tanh" : "gelu"},
        {"relu", false, nullptr, "relu"}};

    for (const auto& one : known) {
      if (one.name == name && one.gated == gated) {
        if (one.argument != nullptr) {
          flag(one.argument, true, "model.activation_func");
        }
        if (one.activation != nullptr) {
          direct_.push_back({"model.activation", one.activation, "model.activation_func"});
        }
        return;
      }
    }
    refuse_value(
        *function,
        "model.activation_func is " + name + (gated ? ", gated," : "") + " which has no equivalent",
        "known are silu and gelu, gated, and gelu, fast_gelu, openai_gelu, relu and squared_relu"
    );
  }

  /// A blend as Megatron-LM's arguments write it: [[PATH, ...], [WEIGHT, ...]] to WEIGHT PATH ...
  static std::vector<std::string> blend(const std::string& path, const Value& value) {
    if (!value.is_array()) {
      refuse_value(value, path + " is " + describe(value.type()) + ", expected a list of paths");
    }
    const Value::Array& parts = value.as_array();
    const bool pairs = !parts.empty() && parts.front().is_array();
    const Value& prefixes = pairs ? parts.front() : value;
    const Value* weights = pairs && parts.size() > 1 && parts[1].is_array() ? &parts[1] : nullptr;
    if (weights != nullptr && weights->as_array().size() != prefixes.as_array().size()) {
      refuse_value(*weights, path + " has not as many weights as paths");
    }
    std::vector<std::string> words;
    for (size_t i = 0; i < prefixes.as_array().size(); ++i) {
      if (weights != nullptr) {
        words.push_back(word_of(path, weights->as_array()[i]));
      }
      words.push_back(word_of(path, prefixes.as_array()[i]));
    }
    return words;
  }

  void data() {
    for (const char* path : {"dataset.sequence_length", "dataset.seq_length"}) {
      if (has(path)) { // the model's is what it could read
        give("seq-length", words_of(path, *find(path)), path);
      }
    }
    if (has("dataset.blend")) {
      give("data-path", blend("dataset.blend", *find("dataset.blend")), "dataset.blend");
    } else if (has("dataset.data_path")) {
      const Value& value = *find("dataset.data_path");
      give(
          "data-path",
          value.is_string() ? parts_of(value.as_string(), ' ') : blend("dataset.data_path", value),
          "dataset.data_path"
      );
    }
    if (has("dataset.blend_per_split")) {
      const Value& splits = *find("dataset.blend_per_split");
      const char* names[] = {"train-data-path", "valid-data-path", "test-data-path"};
      if (!splits.is_array() || splits.as_array().size() != 3) {
        refuse_value(
            splits, "dataset.blend_per_split is no list of three: train, validation and test"
        );
      }
      for (size_t i = 0; i < 3; ++i) {
        if (const Value& one = splits.as_array()[i]; !is_nothing(one)) {
          give(names[i], blend("dataset.blend_per_split", one), "dataset.blend_per_split");
        }
      }
    }
    const Value *seed = find("dataset.random_seed"), *own = find("rng.seed");
    if (seed != nullptr && own != nullptr && !(*seed == *own)) {
      comments_.push_back(
          "dataset.random_seed: no equivalent, training differs: train.seed is the data's, too"
      );
    }
    const std::string type = text("tokenizer.tokenizer_type");
    if (has("model.vocab_size") && !has("tokenizer.vocab_size")) {
      give(
          "vocab-size", words_of("model.vocab_size", *find("model.vocab_size")), "model.vocab_size"
      );
    }
  }

  /// Ranks that NeMo's trainer says it starts.
  [[nodiscard]] std::vector<std::string> launcher() const {
    if (!has("launcher.devices")) {
      return {};
    }
    return {
        "--nnodes",
        has("launcher.nodes") ? word_of("launcher.nodes", *find("launcher.nodes")) : "1",
        "--nproc-per-node",
        word_of("launcher.devices", *find("launcher.devices"))};
  }

  const Value& tree_;
  std::vector<std::pair<const char*, bool>> conditions_;
  std::vector<GivenArgument> given_;
  std::vector<Direct> direct_;
  std::vector<std::string> comments_, harmless_;
};

} // namespace

bool is_bridge(const Value& tree) {
  const auto section = [&](const char* name) {
    const Value* found = tree.find(name);
    return found != nullptr && found->is_table();
  };
  return section("model") && section("train") && section("optimizer") && section("scheduler");
}

ImportedRecipe import_bridge(const Value& tree) {
  return BridgeReader(tree).run();
}

} // namespace mh
