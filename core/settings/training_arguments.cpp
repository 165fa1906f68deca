#include "core/settings/training_arguments.hpp"

#include "core/base/text.hpp"
#include "core/import/importer.hpp"
#include "core/settings/foreign.hpp"

#include <algorithm>
#include <utility>

namespace mh {

namespace {

using enum Becomes;

constexpr const char* kDefault = "transformers' default";

// clang-format off
constexpr ForeignKey kKeys[] = {
    {"output_dir", text, "checkpoint.dir"},
    {"run_name", text, "name"},
    {"per_device_train_batch_size", settings},
    {"per_gpu_train_batch_size", settings},
    {"gradient_accumulation_steps", settings},
    {"max_steps", settings},
    {"num_train_epochs", settings},
    {"learning_rate", settings},
    {"lr_scheduler_type", settings},
    {"lr_scheduler_kwargs", settings},
    {"warmup_steps", settings},
    {"warmup_ratio", settings},
    {"optim", settings},
    {"optim_args", changes, {}, {}, "optimizers have keys of their own"},
    {"optim_target_modules", changes, {}, {}, "optimizer.groups picks parameters by their names"},
    {"weight_decay", settings},
    {"adam_beta1", settings},
    {"adam_beta2", settings},
    {"adam_epsilon", settings},
    {"max_grad_norm", settings},
    {"label_smoothing_factor", changes, {}, {}, "the loss is that of the next token"},
    {"neftune_noise_alpha", changes, {}, {}, "embeddings get no noise"},
    {"bf16", settings},
    {"fp16", settings},
    {"gradient_checkpointing", settings},
    {"activation_checkpointing", settings},
    {"logging_steps", settings},
    {"logging_strategy", nothing},
    {"eval_strategy", settings},
    {"evaluation_strategy", settings},
    {"eval_steps", settings},
    {"save_strategy", settings},
    {"save_steps", settings},
    {"save_total_limit", number, "checkpoint.keep"},
    {"save_only_model", nothing},
    {"load_best_model_at_end", nothing},
    {"seed", settings},
    {"data_seed", changes, {}, {}, "train.seed is the data's, too"},
    {"full_determinism", on, "train.deterministic"},
    {"ddp_timeout", number, "comm.timeout"},
    {"ddp_bucket_cap_mb", nothing},
    {"dataloader_drop_last", nothing},
    {"dataloader_*", nothing},
    {"fsdp", settings},
    {"fsdp_config", settings},
    {"deepspeed", settings},
    {"parallelism_config", settings},
    {"group_by_length", changes, {}, {}, "samples have one length"},
    {"train_sampling_strategy", nothing},
    {"length_column_name", nothing},
    {"auto_find_batch_size", nothing},
    {"average_tokens_across_devices", nothing},
    {"resume_from_checkpoint", nothing},
    {"overwrite_output_dir", nothing},
    {"no_cuda", nothing},
    {"use_*", nothing},
    {"do_*", nothing},
    {"tf32", nothing},
    {"fp16_*", nothing},
    {"bf16_full_eval", nothing},
    {"half_precision_backend", nothing},
    {"per_device_eval_batch_size", nothing},
    {"per_gpu_eval_batch_size", nothing},
    {"eval_*", nothing},
    {"gradient_checkpointing_kwargs", nothing},
    {"activation_checkpointing_kwargs", nothing},
    {"torch_*", nothing},
    {"torchdynamo", nothing},
    {"jit_mode_eval", nothing},
    {"liger_kernel_config", nothing},
    {"logging_*", nothing},
    {"log_*", nothing},
    {"disable_tqdm", nothing},
    {"report_to", nothing},
    {"project", nothing},
    {"trackio_*", nothing},
    {"hub_*", nothing},
    {"push_to_hub*", nothing},
    {"save_*", nothing},
    {"include_*", nothing},
    {"batch_eval_metrics", nothing},
    {"prediction_loss_only", nothing},
    {"metric_for_best_model", nothing},
    {"greater_is_better", nothing},
    {"ignore_data_skip", nothing},
    {"restore_callback_states_from_checkpoint", nothing},
    {"enable_jit_checkpoint", nothing},
    {"accelerator_config", nothing},
    {"accelerator_config.*", nothing},
    {"remove_unused_columns", nothing},
    {"label_names", nothing},
    {"ddp_*", nothing},
    {"local_rank", nothing},
    {"tpu_*", nothing},
    {"mp_parameters", nothing},
    {"past_index", nothing},
    {"ray_scope", nothing},
    {"split_batches", nothing},
    {"dispatch_batches", nothing},
    {"debug", nothing},
    {"skip_memory_metrics", nothing},
    {"_n_gpu", nothing},
    {"__*", nothing},
};

// clang-format on

class TrainingArguments {
public:
  explicit TrainingArguments(const Value& tree)
      : tree_(tree)
      , from_(tree, kKeys) {}

  ImportedRecipe run() {
    from_.take();
    length();
    optimizer();
    schedule();
    layout();
    records();
    return std::move(from_.result());
  }

private:
  void set_number(const std::string& key, std::string_view path, double otherwise) {
    from_.set(
        key,
        number_value(from_.number(path, otherwise)),
        from_.find(path) != nullptr ? path : kDefault
    );
  }

  void length() {
    const char* micro = from_.find("per_gpu_train_batch_size") != nullptr
                            ? "per_gpu_train_batch_size"
                            : "per_device_train_batch_size";
    set_number("batch.micro", micro, 8);
    const int64_t global =
        from_.integer(micro, 8) * from_.integer("gradient_accumulation_steps", 1);
    from_.set("batch.global", global, "gradient_accumulation_steps");
    from_.comment(
        "batch.global is that of one data-parallel rank: of N, transformers' step has N times as many "
        "samples"
    );
    const int64_t steps = from_.integer("max_steps", -1);
    if (steps > 0) {
      from_.set("train.iters", steps, "max_steps");
    } else {
      from_.set("train.iters", 100, "yours to choose");
      const double epochs = from_.number("num_train_epochs", 3);
      from_.comment(
          "num_train_epochs " + to_text(number_value(epochs)) +
          ": train.iters is the length of a run in steps, or train.samples: the corpus' samples, times " +
          to_text(number_value(epochs))
      );
    }
    set_number("train.seed", "seed", 42);
  }

  void optimizer() {
    const std::string name = from_.text("optim", "adamw_torch_fused");

    const struct {
      std::string_view begins, use;
    } known[] = {
        {"adamw_torch_8bit", ""},
        {"adamw_torch_4bit", ""},
        {"adamw_torch", "adamw"},
        {"adamw_hf", "adamw"},
        {"adamw_apex_fused", "adamw"},
        {"paged_adamw_32bit", "adamw"},
        {"adafactor", "adafactor"},
        {"sgd", "sgd"},
        {"lion_32bit", "lion"},
        {"paged_lion_32bit", "lion"},
        {"schedule_free_adamw", "schedule_free_adamw"}};

    const auto* found = std::find_if(std::begin(known), std::end(known), [&](const auto& one) {
      return name.starts_with(one.begins);
    });
    if (found == std::end(known) || found->use.empty()) {
      from_.refuse(
          "optim",
          "optim is " + string_text(name) + ", which has no equivalent",
          "expected adamw_torch, adafactor, sgd, lion_32bit or schedule_free_adamw"
      );
    }
    from_.set("optimizer.use", std::string(found->use), from_.find("optim") ? "optim" : kDefault);
    set_number("optimizer.lr", "learning_rate", 5e-5);
    set_number("optimizer.weight_decay", "weight_decay", 0);
    set_number("optimizer.clip_grad", "max_grad_norm", 1);
    if (found->use == "adamw" || found->use == "lion" || found->use == "schedule_free_adamw") {
      const bool given = from_.find("adam_beta1") != nullptr || from_.find("adam_beta2") != nullptr;
      from_.set(
          "optimizer.betas",
          Value::Array{from_.number("adam_beta1", 0.9), from_.number("adam_beta2", 0.999)},
          given ? "adam_beta1 and adam_beta2" : kDefault
      );
      if (found->use != "lion") {
        set_number("optimizer.eps", "adam_epsilon", 1e-8);
      }
    }
    if (from_.is("fp16")) {
      from_.set("precision", "fp16", "fp16");
    } else {
      from_.set(
          "precision", from_.is("bf16") ? "bf16" : "fp32", from_.find("bf16") ? "bf16" : kDefault
      );
    }
    from_.set("device", "cuda", kDefault);
  }

  void schedule() {
    const std::string name = from_.text("lr_scheduler_type", "linear");

    const struct {
      std::string_view theirs, ours;
    } known[] = {
        {"linear", "linear"},
        {"cosine", "cosine"},
        {"cosine_with_min_lr", "cosine"},
        {"cosine_warmup_with_min_lr", "cosine"},
        {"constant", "constant"},
        {"constant_with_warmup", "constant"},
        {"inverse_sqrt", "inverse_sqrt"},
        {"warmup_stable_decay", "wsd"}};

    const auto* found = std::find_if(std::begin(known), std::end(known), [&](const auto& one) {
      return one.theirs == name;
    });
    if (found == std::end(known)) {
      from_.refuse(
          "lr_scheduler_type",
          "lr_scheduler_type is " + string_text(name) + ", which has no equivalent",
          "expected linear, cosine, cosine_with_min_lr, constant, constant_with_warmup, inverse_sqrt or "
          "warmup_stable_decay"
      );
    }
    const char* by = from_.find("lr_scheduler_type") != nullptr ? "lr_scheduler_type" : kDefault;
    from_.set("lr_schedule.use", std::string(found->ours), by);
    const double warmup = from_.number("warmup_steps", 0), share = from_.number("warmup_ratio", 0);
    if (name != "constant" && warmup >= 1) {
      set_number("lr_schedule.warmup_iters", "warmup_steps", 0);
    } else if (name != "constant" && (warmup > 0 || share > 0)) { // a share of the steps
      set_number("lr_schedule.warmup_share", warmup > 0 ? "warmup_steps" : "warmup_ratio", 0);
    }
    const double lr = from_.number("learning_rate", 5e-5);
    if (from_.find("lr_scheduler_kwargs.min_lr") != nullptr) {
      set_number("lr_schedule.min_lr", "lr_scheduler_kwargs.min_lr", 0);
    } else if (from_.find("lr_scheduler_kwargs.min_lr_rate") != nullptr) {
      from_.set(
          "lr_schedule.min_lr",
          share_of_rate(lr, from_.number("lr_scheduler_kwargs.min_lr_rate", 0)),
          "lr_scheduler_kwargs.min_lr_rate"
      );
    }
    if (found->ours == "wsd") {
      const char* down = "lr_scheduler_kwargs.num_decay_steps";
      if (from_.find(down) != nullptr) {
        set_number("lr_schedule.cooldown_iters", down, 1);
      }
      const std::string form = from_.text("lr_scheduler_kwargs.decay_type", "cosine");
      if (form != "cosine" && form != "linear" && form != "1-sqrt") {
        from_.refuse(
            "lr_scheduler_kwargs.decay_type",
            "lr_scheduler_kwargs.decay_type is " + string_text(form) +
                ", expected cosine, linear or 1-sqrt"
        );
      }
      from_.set(
          "lr_schedule.cooldown",
          form == "1-sqrt" ? "minus_sqrt" : form,
          from_.find("lr_scheduler_kwargs.decay_type") ? "lr_scheduler_kwargs.decay_type" : kDefault
      );
    }
  }

  /// Sharding by FSDP, or by DeepSpeed where its settings are in the file.
  void layout() {
    const Value* fsdp = from_.find("fsdp");
    if (fsdp != nullptr && !is_nothing(*fsdp)) {
      const std::string words = fsdp->is_string() ? fsdp->as_string() : to_text(*fsdp);
      const bool none = words.find("no_shard") != std::string::npos;
      const bool grads = words.find("shard_grad_op") != std::string::npos;
      from_.set("parallel.zero", none ? 0 : grads ? 2 : 3, "fsdp");
    }
    const Value* deepspeed = from_.find("deepspeed");
    if (deepspeed != nullptr && deepspeed->is_string()) {
      from_.comment(
          "deepspeed " + to_text(*deepspeed) +
          ": parallel.zero has the number of its zero_optimization.stage"
      );
    } else if (deepspeed != nullptr) {
      const int64_t stage = from_.integer("deepspeed.zero_optimization.stage", 0);
      from_.set("parallel.zero", stage, "deepspeed.zero_optimization.stage");
    }
    if (from_.find("parallelism_config") != nullptr) {
      from_.comment("parallelism_config: parallel.tensor, context and data say how ranks are used");
    }
    for (const char* key : {"gradient_checkpointing", "activation_checkpointing"}) {
      if (from_.is(key)) {
        from_.set("recompute.use", "full", key);
      }
    }
  }

  /// Steps, or a share of the run's.
  void set_steps(const std::string& key, std::string_view path, double otherwise) {
    const double given = from_.number(path, otherwise);
    const int64_t steps = from_.integer("max_steps", -1);
    if (given > 0 && given < 1 && steps > 0) {
      from_.set(
          key, std::max<int64_t>(1, static_cast<int64_t>(given * static_cast<double>(steps))), path
      );
    } else if (given >= 1) {
      set_number(key, path, otherwise);
    }
  }

  void records() {
    set_steps("log.interval", "logging_steps", 500);
    const char* when =
        from_.find("eval_strategy") != nullptr ? "eval_strategy" : "evaluation_strategy";
    if (from_.text(when, "no") == "steps") {
      set_steps(
          "train.eval_interval", from_.find("eval_steps") ? "eval_steps" : "logging_steps", 500
      );
    } else if (from_.text(when, "no") == "epoch") {
      from_.comment(std::string(when) + ": train.eval_interval counts steps");
    }
    const std::string saves = from_.text("save_strategy", "steps");
    if (saves == "steps") {
      set_steps("checkpoint.interval", "save_steps", 500);
    } else if (saves != "no") {
      from_.comment("save_strategy: checkpoint.interval counts steps");
    }
  }

  const Value& tree_;
  ForeignSettings from_;
};

} // namespace

ImportedRecipe import_training_arguments(const Value& tree) {
  return TrainingArguments(tree).run();
}

} // namespace mh
