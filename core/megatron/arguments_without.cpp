// Arguments of Megatron-LM that have no counterpart in a recipe, by subject. All arguments of its
// HEAD of August 2026 (d98e8a64) are here or in arguments.cpp; a test checks the list.

#include "core/megatron/arguments.hpp"

namespace mh {

namespace {

using enum Becomes;

// clang-format off
constexpr MegatronArguments kWithout[] = {
    // Other models, and other trainings.
    {changes, "there is no reinforcement learning",
     "rl-* grpo-* perform-rl-step langrl-env-config refit-method"},
    {changes, "there is no training on another model's scores", "logits-*"},
    {changes, "layers of linear attention are not translated", "gdp-* linear-*"},
    {changes, "states of mixers have the precision of the kernel", "mamba-*"},
    {changes, "there is no sparse attention by an index", "dsa-* no-dsa-*"},
    {changes, "attention is of the usual kind",
     "experimental-attention-variant softmax-type qk-l2-norm qk-clip "
     "qk-clip-alpha qk-clip-threshold mrope-section"},
    {changes, "there is one residual stream", "mhc-* enable-mhc-connections"},
    {changes, "modules of multi-token prediction have layers of their own, as the model's last",
     "mtp-use-repeated-layer mtp-detach-heads mtp-hsm mtp-standalone mtp-hybrid-override-pattern"},
    {changes, "widths have no factors of their own (muP)", "use-mup mup-*"},
    {changes, "all layers are alike", "heterogeneous-layers-*"},
    {changes, "activations are not shifted or clamped",
     "glu-linear-offset activation-func-clamp-value"},
    {changes, "there are no images",
     "img-* num-channels patch-dim num-classes classes-fraction data-per-class-fraction "
     "iter-per-epoch vision-* swin-* dino-* mask-type mask-factor"},
    {changes, "a retriever starts from an encoder by megahost run --weights", "bert-load ict-load"},
    {changes, "megahost embed makes indexes, and searches in them",
     "indexer-* evidence-data-path block-data-path embedding-path retriever-seq-length sample-rate "
     "bert-embedder-type output-bert-embeddings"},
    {changes, "optimizer.groups scales the rate of tensors by their names", "head-lr-mult"},
    {changes, "samples of conversations are made by megahost data prepare --template",
     "sft sft-tokenizer-prompt-format chat-template"},
    {changes, "data.fim_rate moves the middle of documents; it takes ids, not tokens", "fim-*"},
    {changes, "all weights are trained", "freeze-all-layers"},
    {changes, "the same number of samples in each step: batch.rampup_start grows it evenly",
     "step-batch-size-schedule decrease-batch-size-if-needed"},
    {changes, "no step is left out", "iterations-to-skip phase-transition-iterations"},
    {changes, "losses are averaged over the tokens of a microbatch", "calculate-per-token-loss"},
    {changes, "weights of norms are not decayed", "apply-wd-to-qk-layernorm no-weight-decay-cond-type"},
    {changes, "all layers have the recipe's precision",
     "first-last-layers-bf16 num-layers-at-start-in-bf16 num-layers-at-end-in-bf16 fp8-interval "
     "no-fp8-wgrad fp8-output-proj fp8-quantizer-factory te-precision-config-file"},
    {changes, "there is no 4-bit precision", "fp4-*"},
    {changes, "experts drop by model.capacity_factor alone", "moe-expert-rank-capacity-factor"},
    {changes, "routers are balanced by model.balance alone",
     "moe-router-quantile-balancing-ema moe-router-force-biased"},
    {changes, "optimizer.nesterov, optimizer.scale and optimizer.precision are Muon's",
     "muon-*"},

    // Inference.
    {nothing, "generation has a cache and no server",
     "inference-* enable-chunked-prefill num-speculative-tokens flash-decode "
     "decode-only-cuda-graphs mlp-chunks-for-prefill nccl-all-reduce-for-prefill "
     "max-tokens-to-oom use-legacy-static-engine symmetric-ar-type output-logit-dtype "
     "moe-pad-experts-for-cuda-graph-inference result-rejected-tracker-filename"},

    // The layout.
    {nothing, "context parallelism is parallel.context with parallel.context_method",
     "hierarchical-context-parallel-sizes hybrid-context-parallel max-seqlen-per-dp-cp-rank"},
    {nothing, "a pipeline's order is parallel.schedule",
     "microbatch-group-size-per-virtual-pipeline-stage overlap-p2p-communication-warmup-flush "
     "defer-embedding-wgrad-compute wgrad-deferral-limit delay-wgrad-compute "
     "pipeline-model-parallel-comm-backend use-ring-exchange-p2p mlp-chunks-for-training"},
    {nothing, "parallel.zero says what data-parallel ranks share",
     "num-distributed-optimizer-instances outer-dp-sharding-strategy "
     "enable-full-sharding-in-hsdp megatron-fsdp-* fsdp-* torch-fsdp2-no-reshard-after-forward "
     "init-model-with-meta-device no-strict-fsdp-dtensor-load create-all-gather-group "
     "load-main-params-from-ckpt main-grads-dtype main-params-dtype suggested-communication-unit-size"},
    {nothing, "weights are sharded by parallel.tensor and parallel.zero",
     "tensor-parallel-num-weight-shards expert-tensor-parallel-num-weight-shards gtp-*"},
    {nothing, "collectives overlap where they can",
     "tp-comm-* no-tp-comm-* overlap-param-gather-with-optimizer-step no-align-grad-reduce "
     "no-align-param-gather ddp-num-buckets ddp-pad-buckets-for-high-nccl-busbw "
     "ddp-average-in-collective ddp-reduce-scatter-with-fp32-accumulation "
     "ddp-param-name-patterns-for-fp32-local-accumulation no-gradient-reduce-div-fusion "
     "high-priority-* nccl-communicator-config-path use-nccl-ub "
     "use-sharp sharp-enabled-group disable-symmetric-registration "
     "reuse-grad-buf-for-mxfp8-param-ag no-use-layer-wise-param-layout "
     "ep-overlap-early-attn-memory-release overlap-dispatch-backward-with-experts-wgrad "
     "disable-gloo-process-groups distributed-timeout-seconds-after-init"},
    {nothing, "experts are dispatched as parallel.expert_dispatch says",
     "moe-combine-bwd-dtype moe-dispatch-fwd-dtype moe-flex-dispatcher-num-sms moe-hybridep-* "
     "moe-ncclep-zero-copy moe-permute-fusion-into-hybridep"},
    {nothing, "megahost plan measures a layout without its GPUs", "fake-process-group"},

    // Kernels and memory.
    {nothing, "kernels are chosen by the device",
     "kitchen-* use-kitchen-attention cuda-graph-* external-cuda-graph optimizer-cuda-graph "
     "batch-invariant-* "
     "disable-jit-fuser disable-bf16-reduced-precision-matmul flash-attention-version "
     "fused-residual-rmsnorm use-te-activation-func use-transformer-engine-op-fuser "
     "use-fused-weighted-squared-relu use-grouped-gemm-for-* moe-use-grouped-tensor "
     "moe-single-grouped-* moe-mlp-glu-interleave-size moe-shared-expert-glu-interleave-size "
     "mla-down-proj-fusion fp8-param-gather keep-fp8-transpose-cache "
     "no-clone-scatter-output-in-embedding "
     "use-same-sampling-seed-across-dp-ranks onnx-safe enable-experimental"},
    {nothing, "what is kept and what is made again is `recompute`'s",
     "fine-grained-* offload-modules activation-offload-fraction delay-offload-until-cuda-graph "
     "delta-offload-bytes-across-pp-ranks min-offloaded-tensor-size moe-paged-stash* "
     "cpu-offloading-retain-pinned-cpu-buffers"},
    {nothing, "optimizer.offload keeps state in host memory",
     "optimizer-offload-fraction overlap-cpu-optimizer-d2h-h2d no-pin-cpu-grads no-pin-cpu-params "
     "use-torch-optimizer-for-cpu-offload"},

    // Checkpoints.
    {nothing, "checkpoints load under any layout, and are written while steps go on",
     "ckpt-* no-ckpt-* dist-ckpt-* distrib-optim-fully-reshardable-mem-efficient async-ckpt-* async-strategy "
     "use-persistent-ckpt-worker auto-detect-ckpt-format verify-integrity "
     "persistent-save-interval no-save-tokenizer-assets"},
    {nothing, "checkpoint.local_dir, local_interval and local_copies", "non-persistent-* replication replication-*"},
    {nothing, "megahost run --resume, --weights DIR and --step N",
     "override-ckpt-iteration exit-on-missing-checkpoint use-mp-args-from-checkpoint-args "
     "no-use-tokenizer-model-from-checkpoint-args no-initialization"},

    // The run.
    {nothing, "the run goes on after the checks of `guards`",
     "rerun-mode error-injection-* fault-injector-* check-for-large-grads "
     "check-weight-hash-across-dp-replicas-interval gpu-sniff-test-interval"},
    {nothing, "a launcher starts a run again, which goes on with --resume=auto",
     "inprocess-* enable-ft-package calc-ft-timeouts ft-num-warmup-iters adlr-autoresume*"},
    {nothing, "signals save a checkpoint",
     "exit-signal exit-signal-handler-for-dataloader exit-signal-handler-for-training"},
    {nothing, "evaluations have the training's batch, every train.eval_interval steps",
     "eval-global-batch-size eval-micro-batch-size start-eval-at-iter validation-set-names"},
    {nothing, "a device is not waited for between steps",
     "train-sync-interval no-barrier-with-level-1-timing no-manual-gc-eval"},

    // Logs.
    {nothing, "metrics.jsonl, event files and --profile are the run's records",
     "log-* no-log-* otel-* straggler-* disable-straggler-on-startup flight-recorder-* "
     "no-flight-recorder-* one-logger-* app-tag-run-* wandb-entity logging-level record-* "
     "memory-snapshot-path pytorch-profiler-* use-pytorch-profiler nvtx-ranges save-*-interval "
     "moe-routing-trace-* moe-enable-routing-replay run-workload-inspector-server "
     "config-logger-dir dump-param-to-param-group-map test-mode"},

    // Data.
    {nothing, "corpora are mapped, and indexes are made once",
     "dataloader-defer-npy-index-mmap dataloader-fast-cache-load per-dataset-sequences-path "
     "mid-level-dataset-surplus enable-msc disable-msc"},
    {changes, "documents of a sample are apart with data.reset_attention and data.reset_positions",
     "dataloader-inter-document-masking"},
    {nothing, "the tokenizer's own file says it",
     "tiktoken-* tokenizer-* no-tokenizer-* null-tokenizer-* trust-remote-code use-gigatoken no-pad-vocab-size "
     "allow-ambiguous-pad-tokens"},
    {nothing, "a recipe is the settings' file", "yaml-cfg"},
    {nothing, "yarn has one form",
     "yarn-correction-range-round-to-int no-yarn-correction-range-round-to-int"},
};
// clang-format on

} // namespace

std::span<const MegatronArguments> megatron_arguments_without() {
  return kWithout;
}

} // namespace mh
