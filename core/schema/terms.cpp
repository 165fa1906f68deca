#include "core/schema/terms.hpp"

#include "core/base/text.hpp"
#include "core/megatron/arguments.hpp"
#include "core/schema/sections.hpp"

#include <algorithm>
#include <cctype>

namespace mh {

namespace {

// clang-format off
constexpr ForeignTerm kTerms[] = {
    // Megatron-LM: arguments that are read together with others.
    {"group_query_attention", "model.kv_heads"},
    {"num_query_groups", "model.kv_heads"},
    {"max_position_embeddings", "model.seq_length"},
    {"position_embedding_type", "model.positions"},
    {"use_rotary_position_embeddings", "model.positions"},
    {"use_rope_scaling", "model.rope_scaling"},
    {"rope_scaling_factor", "model.rope_factor"},
    {"swiglu", "model.activation"},
    {"qk_layernorm", "model.qk_norm"},
    {"window_size", "model.window"},
    {"multi_latent_attention", "model.kv_rank"},
    {"q_lora_rank", "model.q_rank"},
    {"kv_lora_rank", "model.kv_rank"},
    {"qk_pos_emb_head_dim", "model.rope_head_dim"},
    {"moe_layer_freq", "model.moe_every"},
    {"moe_router_load_balancing_type", "model.balance"},
    {"moe_aux_loss_coeff", "model.balance_weight"},
    {"vocab_size", "model.vocab"},
    {"sequence_parallel", "parallel.sequence"},
    {"num_layers_per_virtual_pipeline_stage", "parallel.virtual_stages"},
    {"num_virtual_stages_per_pipeline_rank", "parallel.virtual_stages"},
    {"use_distributed_optimizer", "parallel.zero"},
    {"use_megatron_fsdp", "parallel.zero"},
    {"use_torch_fsdp2", "parallel.zero"},
    {"data_parallel_sharding_strategy", "parallel.zero"},
    {"grad_reduce_in_bf16", "parallel.reduce_dtype"},
    {"distributed_timeout_minutes", "comm.timeout"},
    {"recompute_granularity", "recompute.use"},
    {"recompute_activations", "recompute.use"},
    {"recompute_method", "recompute.method"},
    {"recompute_num_layers", "recompute.layers"},
    {"recompute_modules", "recompute.parts"},
    {"fp16", "precision"},
    {"bf16", "precision"},
    {"fp8_format", "precision"},
    {"adam_beta1", "optimizer.betas"},
    {"adam_beta2", "optimizer.betas"},
    {"adam_eps", "optimizer.eps"},
    {"sgd_momentum", "optimizer.momentum"},
    {"lr_decay_style", "lr_schedule.use"},
    {"min_lr", "lr_schedule.min_lr"},
    {"rampup_batch_size", "batch.rampup_start"},
    {"check_for_spiky_loss", "guards.spike"},
    {"mock_data", "data.use"},
    {"data_path", "data.paths"},
    {"train_data_path", "data.paths"},
    {"reset_position_ids", "data.reset_positions"},
    {"reset_attention_mask", "data.reset_attention"},
    {"eod_mask_loss", "data.mask_eod_loss"},
    {"tokenizer_type", "tokenizer.use"},
    {"vocab_file", "tokenizer.vocab"},
    {"merge_file", "tokenizer.merges"},
    {"wandb_exp_name", "name"},

    // Hugging Face: a model's config.json.
    {"num_hidden_layers", "model.layers"},
    {"n_layer", "model.layers"},
    {"n_layers", "model.layers"},
    {"n_embd", "model.hidden"},
    {"d_model", "model.hidden"},
    {"n_head", "model.heads"},
    {"n_heads", "model.heads"},
    {"num_key_value_heads", "model.kv_heads"},
    {"n_kv_heads", "model.kv_heads"},
    {"intermediate_size", "model.ffn_hidden"},
    {"n_inner", "model.ffn_hidden"},
    {"n_positions", "model.seq_length"},
    {"n_ctx", "model.seq_length"},
    {"block_size", "model.seq_length"},
    {"context_length", "model.seq_length"},
    {"rms_norm_eps", "model.norm_eps"},
    {"layer_norm_eps", "model.norm_eps"},
    {"layer_norm_epsilon", "model.norm_eps"},
    {"rope_theta", "model.rope_base"},
    {"partial_rotary_factor", "model.rope_share"},
    {"rotary_emb_base", "model.rope_base"},
    {"rotary_pct", "model.rope_share"},
    {"use_parallel_residual", "model.parallel_residual"},
    {"parallel_attn", "model.parallel_residual"},
    {"num_kv_heads", "model.kv_heads"},
    {"hidden_act", "model.activation"},
    {"activation_function", "model.activation"},
    {"tie_word_embeddings", "model.tied"},
    {"sliding_window", "model.window"},
    {"attention_bias", "model.qkv_bias"},
    {"initializer_range", "model.init_std"},
    {"resid_pdrop", "model.dropout"},
    {"attn_pdrop", "model.attention_dropout"},
    {"hidden_dropout_prob", "model.dropout"},
    {"attention_probs_dropout_prob", "model.attention_dropout"},
    {"num_local_experts", "model.experts"},
    {"n_routed_experts", "model.experts"},
    {"num_experts_per_tok", "model.experts_per_token"},
    {"moe_intermediate_size", "model.expert_hidden"},
    {"model_type", "model.use"},
    {"model.name", "model.use"},
    {"model.type", "model.use"},
    {"model.architecture", "model.use"},
    {"model.flavor", "preset"},
    {"torch_dtype", "precision"},
    {"dtype", "precision"},

    // Hugging Face: TrainingArguments.
    {"learning_rate", "optimizer.lr"},
    {"per_device_train_batch_size", "batch.micro"},
    {"train_batch_size", "batch.global"},
    {"gradient_accumulation_steps", "batch.global"},
    {"max_steps", "train.iters"},
    {"max_iters", "train.iters"},
    {"num_train_epochs", "train.iters"},
    {"warmup_steps", "lr_schedule.warmup_iters"},
    {"warmup_ratio", "lr_schedule.warmup_share"},
    {"warmup", "lr_schedule.warmup_iters"},
    {"lr_scheduler_type", "lr_schedule.use"},
    {"lr_scheduler_kwargs", "lr_schedule.use"},
    {"lr_decay_steps", "lr_schedule.decay_iters"},
    {"adam_epsilon", "optimizer.eps"},
    {"max_grad_norm", "optimizer.clip_grad"},
    {"grad_clip", "optimizer.clip_grad"},
    {"gradient_clipping", "optimizer.clip_grad"},
    {"gradient_clip_val", "optimizer.clip_grad"},
    {"optim", "optimizer.use"},
    {"optimizer.name", "optimizer.use"},
    {"optimizer.type", "optimizer.use"},
    {"beta1", "optimizer.betas"},
    {"beta2", "optimizer.betas"},
    {"save_steps", "checkpoint.interval"},
    {"save_total_limit", "checkpoint.keep"},
    {"output_dir", "checkpoint.dir"},
    {"out_dir", "checkpoint.dir"},
    {"run_name", "name"},
    {"eval_steps", "train.eval_interval"},
    {"logging_steps", "log.interval"},
    {"gradient_checkpointing", "recompute.use"},
    {"activation_checkpointing", "recompute.use"},
    {"full_determinism", "train.deterministic"},
    {"zero_stage", "parallel.zero"},
    {"zero_optimization", "parallel.zero"},
    {"fsdp", "parallel.zero"},
    {"dataset", "data.paths"},
    {"datasets", "data.paths"},

    // DeepSpeed: its configuration file.
    {"train_micro_batch_size_per_gpu", "batch.micro"},
    {"zero_optimization.stage", "parallel.zero"},
    {"zero_optimization.overlap_comm", "parallel.overlap"},
    {"zero_optimization.reduce_bucket_size", "parallel.bucket_size"},
    {"communication_data_type", "parallel.reduce_dtype"},
    {"bf16.enabled", "precision"},
    {"fp16.enabled", "precision"},

    // torchtitan: sections of its own.
    {"job.dump_folder", "checkpoint.dir"},
    {"job.description", "name"},
    {"training.steps", "train.iters"},
    {"train.steps", "train.iters"},
    {"training.max_norm", "optimizer.clip_grad"},
    {"training.dataset", "data.use"},
    {"training.dataset_path", "data.paths"},
    {"training.mixed_precision_param", "precision"},
    {"training.mixed_precision_reduce", "parallel.reduce_dtype"},
    {"seq_len", "model.seq_length"},
    {"sequence_length", "model.seq_length"},
    {"local_batch_size", "batch.micro"},
    {"tensor_parallel_degree", "parallel.tensor"},
    {"pipeline_parallel_degree", "parallel.pipeline"},
    {"pipeline_parallel_schedule", "parallel.schedule"},
    {"pipeline_parallel_microbatch_size", "batch.micro"},
    {"context_parallel_degree", "parallel.context"},
    {"expert_parallel_degree", "parallel.expert"},
    {"expert_tensor_parallel_degree", "parallel.expert_tensor"},
    {"data_parallel_replicate_degree", "parallel.data"},
    {"data_parallel_shard_degree", "parallel.zero"},
    {"parallel.tp", "parallel.tensor"},
    {"parallel.pp", "parallel.pipeline"},
    {"parallel.cp", "parallel.context"},
    {"parallel.ep", "parallel.expert"},
    {"parallel.dp", "parallel.data"},
    {"lr_scheduler.decay_type", "lr_schedule.use"},
    {"lr_scheduler.name", "lr_schedule.use"},
    {"min_lr_factor", "lr_schedule.min_lr"},
    {"checkpoint.folder", "checkpoint.dir"},
    {"keep_latest_k", "checkpoint.keep"},
    {"initial_load_path", "load.from"},
    {"checkpoint.load_step", "load.step"},
    {"activation_checkpoint.mode", "recompute.use"},
    {"metrics.log_freq", "log.interval"},
    {"metrics.enable_tensorboard", "log.tensorboard"},
    {"validation.freq", "train.eval_interval"},
    {"validation.steps", "train.eval_iters"},
    {"init_timeout_seconds", "comm.timeout"},
    {"train_timeout_seconds", "comm.timeout"},

    // Keys of our own that belong to plugins, where they stand in another section.
    {"layers", "model.layers"},
    {"hidden", "model.hidden"},
    {"heads", "model.heads"},
    {"kv_heads", "model.kv_heads"},
    {"ffn_hidden", "model.ffn_hidden"},
    {"vocab", "model.vocab"},
    {"dropout", "model.dropout"},
    {"warmup_iters", "lr_schedule.warmup_iters"},
    {"decay_iters", "lr_schedule.decay_iters"},
    {"betas", "optimizer.betas"},
    {"eps", "optimizer.eps"},
    {"paths", "data.paths"},
};

// clang-format on

/// Values of keys, and names of plugins.
constexpr ForeignTerm kWords[] = {
    {"bfloat16", "bf16"},
    {"float16", "fp16"},
    {"half", "fp16"},
    {"float32", "fp32"},
    {"float", "fp32"},
    {"float8", "fp8"},
    {"gpu", "cuda"},
    {"silu", "swiglu"},
    {"swish", "swiglu"},
    {"gelu_new", "gelu_tanh"},
    {"gelu_pytorch_tanh", "gelu_tanh"},
    {"squared_relu", "relu2"},
    {"rotary", "rope"},
    {"p2p", "ring"},
    {"a2a", "all_to_all"},
    {"ulysses", "all_to_all"},
    {"learned_absolute", "learned"},
    {"layer_norm", "layernorm"},
    {"rms_norm", "rmsnorm"},
    {"adamw_torch", "adamw"},
    {"adamw_torch_fused", "adamw"},
    {"fusedadam", "adamw"},
    {"cosine_with_warmup", "cosine"},
    {"cosine_with_min_lr", "cosine"},
    {"constant_with_warmup", "constant"},
    {"warmup_stable_decay", "wsd"},
    {"gpt2bpetokenizer", "gpt2"},
    {"nulltokenizer", "null"},
    {"llamaforcausallm", "llama"},
    {"mistralforcausallm", "llama"},
    {"mixtralforcausallm", "moe"},
    {"gpt2lmheadmodel", "gpt"},
    {"gptneoxforcausallm", "gpt"},
    {"olmo2forcausallm", "llama"},
    {"interleaved1f1b", "1f1b"},
    {"zbvzerobubble", "zb-v"},
};

/// The key as a recipe writes it: "train.save-interval" is "train.save_interval".
std::string written_here(std::string_view path) {
  std::string name(path);
  std::transform(name.begin(), name.end(), name.begin(), [](char c) {
    return c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  });
  return name;
}

std::string_view term_for(std::string_view name) {
  const auto* found = std::find_if(std::begin(kTerms), std::end(kTerms), [&](const ForeignTerm& t) {
    return t.name == name;
  });
  return found == std::end(kTerms) ? std::string_view() : found->key;
}

const MegatronArgument* argument_for(std::string_view name) {
  const auto all = megatron_arguments();
  const auto found = std::find_if(all.begin(), all.end(), [&](const MegatronArgument& argument) {
    return written_here(argument.name) == name;
  });
  return found == all.end() ? nullptr : &*found;
}

/// The key of that name in the one section that has it, of those that are known.
std::string own_key(std::string_view name, const SectionSchemas& known) {
  std::string found;
  for (const std::string& section : section_names()) {
    if (name != "use" && known.at(section).find(name) != nullptr) {
      if (!found.empty()) {
        return "";
      }
      found = section + "." + std::string(name);
    }
  }
  return found;
}

} // namespace

std::optional<std::string>
word_meant(std::string_view word, const std::vector<std::string>& words) {
  const std::string name = written_here(word);
  for (const ForeignTerm& one : kWords) {
    if (one.name == name && std::find(words.begin(), words.end(), one.key) != words.end()) {
      return std::string(one.key);
    }
  }
  return nearest(word, words);
}

std::span<const ForeignTerm> foreign_terms() {
  return kTerms;
}

std::optional<Meaning> meaning_of(std::string_view path, const SectionSchemas& known) {
  const std::string whole = written_here(path);
  const size_t dot = whole.rfind('.');
  const std::string name = dot == std::string::npos ? whole : whole.substr(dot + 1);
  for (const std::string& asked : {whole, name}) {
    if (const auto key = term_for(asked); !key.empty()) {
      return Meaning{std::string(key), ""};
    }
  }
  if (const MegatronArgument* argument = argument_for(name)) {
    if (!argument->key.empty() || !argument->note.empty()) {
      return Meaning{std::string(argument->key), std::string(argument->note)};
    }
  }
  if (std::string key = own_key(name, known); !key.empty() && key != whole) {
    return Meaning{std::move(key), ""};
  }
  return std::nullopt;
}

} // namespace mh
