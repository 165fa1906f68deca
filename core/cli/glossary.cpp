#include "core/cli/glossary.hpp"

#include "core/cli/topics.hpp"

#include <algorithm>

namespace mh {

std::span<const Term> glossary() {
  static const std::vector<Term> all{
      {"activation checkpointing",
       {"gradient checkpointing", "recomputation", "rematerialization"},
       "The forward pass saves only some activations, and the backward pass recomputes the others: "
       "memory for FLOPs. `recompute.use` chooses among full, selective (the parts that "
       "`recompute.parts` names) and budget."},
      {"bubble",
       {"pipeline bubble"},
       "Time in which a pipeline stage has no microbatch to work on. More microbatches per step "
       "(`batch.global`), `parallel.virtual_stages` and a zero-bubble `parallel.schedule` make it "
       "smaller; megahost schedule draws it."},
      {"capacity factor",
       {"expert capacity", "token dropping"},
       "The most tokens that an expert takes of a microbatch, as a multiple of its even share; "
       "those beyond it are dropped. `model.capacity_factor` sets it, and `model.capacity_drop` "
       "which tokens are dropped; absent, none are."},
      {"context parallelism",
       {"context parallel", "CP"},
       "The tokens of each sequence are sharded over ranks, and attention exchanges keys and "
       "values between them: for sequences that are too long for one rank. `parallel.context` sets "
       "the degree, `parallel.context_method` the exchange."},
      {"cosine decay",
       {"cosine", "cosine annealing"},
       "A schedule whose learning rate falls along half a cosine from its highest value to its "
       "lowest. `lr_schedule.use = \"cosine\"` sets it, `lr_schedule.min_lr` the lowest value and "
       "`lr_schedule.decay_iters` the step at which it is reached."},
      {"data parallelism",
       {"data parallel", "DDP", "DP"},
       "Ranks hold the same model and train on different samples; gradients are reduced after the "
       "backward pass, overlapped with it. `parallel.data` sets the degree, and `parallel.zero` "
       "what is sharded instead of held by all."},
      {"expert parallelism",
       {"expert parallel", "EP"},
       "The experts of a mixture are sharded over ranks, and each token is sent to the ranks of "
       "the experts that it chose. `parallel.expert` sets the degree, `parallel.expert_dispatch` "
       "how tokens are sent."},
      {"FlashAttention",
       {"flash attention", "fused attention"},
       "Attention computed tile by tile, so that the matrix of scores never exists in memory. No "
       "key sets it: the device chooses the kernel, and every device that has one uses it."},
      {"FSDP",
       {"fully sharded data parallel", "fully sharded data parallelism", "ZeRO-3", "ZeRO3"},
       "Fully sharded data parallelism: weights, gradients and the optimizer's state are sharded "
       "over data-parallel ranks, and the weights of a block are gathered just before it runs. "
       "`parallel.zero = 3` sets it."},
      {"global batch",
       {"global batch size"},
       "The sequences that one optimizer step trains on, over all data-parallel ranks. "
       "`batch.global` sets it; `batch.rampup_start` lets it grow over the first part of a run."},
      {"goodput",
       {},
       "The share of a run's time that made progress: start-up, restarts, recomputed steps and "
       "waiting for data or checkpoints do not count. No key sets it: megahost status and the end "
       "of a run show it by cause."},
      {"GQA",
       {"grouped-query attention", "MQA", "multi-query attention"},
       "Grouped-query attention: several query heads share one key and value head, so that keys "
       "and values take less memory and traffic. `model.kv_heads` sets the number of these heads; "
       "1 is multi-query attention."},
      {"gradient accumulation",
       {"accumulation steps", "gradient accumulation steps"},
       "A step adds up the gradients of several microbatches before it updates the weights. It "
       "follows from other keys: each rank has `batch.global` / (`batch.micro` x data-parallel "
       "degree) microbatches."},
      {"gradient clipping",
       {"clip grad", "gradient norm"},
       "Gradients are scaled down if the norm over all of them is above a limit. "
       "`optimizer.clip_grad` sets the limit; 0 does not clip."},
      {"HFU",
       {"hardware FLOPs utilization"},
       "Hardware FLOPs utilization: the FLOP/s that a step executes, over the peak of the devices. "
       "They are the model's own, those that are recomputed or padded, those within the chunks "
       "of a recurrence, and the scores between the texts of a retriever's batch. No key sets it: "
       "megahost plan shows it next to MFU."},
      {"in flight",
       {"microbatches in flight", "outstanding"},
       "Begun and not yet over: microbatches of a pipeline whose forward pass is done and whose "
       "backward pass is not; megahost schedule counts them, and each keeps its activations. "
       "Collectives that overlap with computation are in flight, too, and a checkpoint that is "
       "written while steps go on (`checkpoint.async`, `checkpoint.if_busy`)."},
      {"load balancing",
       {"auxiliary loss", "aux loss", "load balancing loss", "auxiliary-loss-free"},
       "Terms that keep the experts of a mixture evenly busy: losses, or a bias of the router that "
       "moves after each step (DeepSeek-V3's, without a loss). `model.balance` chooses among them, "
       "`model.balance_weight` is the factor of the losses."},
      {"loss scale",
       {"loss scaling", "dynamic loss scale"},
       "A factor of the loss in the backward pass that keeps small gradients of fp16 from becoming "
       "0. It is dynamic from `fp16.initial_scale` on, or constant with `fp16.loss_scale`; bf16 "
       "needs none."},
      {"master weights",
       {"fp32 masters", "bf16 masters", "fp32 master weights", "masters"},
       "Copies of the bf16 or fp16 weights in fp32, which the optimizer updates, so that small "
       "updates are not rounded away. `optimizer.master_weights = false` leaves those of bf16 out; "
       "`optimizer.stochastic_rounding` then keeps small updates on average."},
      {"MFU",
       {"model FLOPs utilization"},
       "Model FLOPs utilization: the FLOP/s that the model's formula needs, without recomputed "
       "ones, over the peak of the devices. No key sets it: a run's lines and megahost plan show "
       "it."},
      {"microbatch",
       {"micro batch", "micro batch size"},
       "The sequences that pass the model at a time on one data-parallel rank. `batch.micro` sets "
       "it: a larger one makes larger GEMMs, and saves more activations."},
      {"MLA",
       {"latent attention", "multi-head latent attention"},
       "Multi-head latent attention (DeepSeek): keys and values of all heads are made from one "
       "narrow latent, so that generation keeps little per token. `model.kv_rank` sets the width "
       "of the latent, `model.q_rank` that of the queries."},
      {"muP",
       {"maximal update parametrization"},
       "Maximal update parametrization: initial values and learning rates by width, so that the "
       "best rates of a small model are those of a large one. No key sets it as a whole; "
       "`optimizer.groups` gives parameters learning rates of their own."},
      {"1F1B",
       {"one forward one backward", "interleaved 1F1B", "interleaving"},
       "A pipeline schedule that alternates one forward and one backward pass, so that a stage "
       "saves the activations of few microbatches. It is `parallel.schedule`'s default, and with "
       "`parallel.virtual_stages` above 1 it is interleaved."},
      {"pipeline parallelism",
       {"pipeline parallel", "PP"},
       "The layers are split into stages on different ranks, and the microbatches of a step pass "
       "them one after the other. `parallel.pipeline` sets the number of stages, "
       "`parallel.schedule` the order of passes."},
      {"ring attention",
       {},
       "Context parallelism in which keys and values are passed on from rank to rank in a ring, "
       "overlapped with the attention to those that are there. `parallel.context_method = "
       "\"ring\"` sets it, with `parallel.context` above 1."},
      {"RoPE",
       {"rotary embedding", "rotary position embedding", "YaRN"},
       "Rotary position embedding: queries and keys are rotated by angles that grow with the "
       "position. `model.positions = \"rope\"` sets it, `model.rope_base` the base of the "
       "wavelengths, and `model.rope_scaling` (YaRN, Llama 3's) stretches it to longer contexts."},
      {"sequence packing",
       {"packed sequences", "packing"},
       "Several documents share one sample, so that no tokens are padding. `data.packing` sets how "
       "documents are laid into samples, and `data.reset_attention` keeps a token from attending "
       "to other documents."},
      {"sequence parallelism",
       {"sequence parallel", "SP"},
       "Between the sharded matrices of tensor parallelism the tokens are sharded over the same "
       "ranks, so that norms, dropout and their saved activations are, too. "
       "`parallel.sequence = true` sets it, with `parallel.tensor` above 1."},
      {"sliding window",
       {"sliding window attention", "local attention"},
       "A token attends only to the tokens just before it. `model.window` sets how many, and "
       "`model.window_pattern` which layers have the window."},
      {"stochastic rounding",
       {},
       "A number is rounded up or down at random, with the probability that makes the mean right: "
       "small updates are kept on average. `optimizer.stochastic_rounding` sets it for bf16 state "
       "and for bf16 weights without masters."},
      {"tensor parallelism",
       {"tensor parallel", "TP"},
       "The matrices of each layer, with their heads, are sharded over ranks, which reduce their "
       "results in every layer: for ranks that fast links join. `parallel.tensor` sets the "
       "degree."},
      {"Ulysses",
       {"DeepSpeed-Ulysses"},
       "Context parallelism in which ranks exchange heads for tokens before attention and back "
       "after it, so that each attends to whole sequences with some of the heads. "
       "`parallel.context_method = \"all_to_all\"` sets it, with `parallel.context` above 1."},
      {"virtual pipeline",
       {"virtual stages", "interleaved pipeline", "VPP"},
       "Each pipeline stage holds several chunks of the model, so that the bubble is smaller and "
       "more is sent between stages. `parallel.virtual_stages` sets the number of chunks."},
      {"warmup",
       {"warm-up", "learning rate warmup"},
       "The learning rate grows from `lr_schedule.warmup_init` to its highest value over the first "
       "steps. `lr_schedule.warmup_iters`, or `lr_schedule.warmup_share` of the run, sets how "
       "many."},
      {"WSD",
       {"warmup-stable-decay", "trapezoidal schedule", "cooldown"},
       "Warmup, stable, decay: a schedule that keeps its highest learning rate until it falls at "
       "the end. `lr_schedule.use = \"wsd\"` sets it, `lr_schedule.cooldown_share` or "
       "`lr_schedule.cooldown_iters` the length of the fall."},
      {"z-loss",
       {"router z-loss"},
       "A loss on large logits of a mixture's router (ST-MoE), which keeps its softmax in range. "
       "`model.z_weight` sets its factor; 0 leaves it out."},
      {"zero bubble",
       {"ZB-H1", "ZB-V", "zero-bubble schedule"},
       "Pipeline schedules that split the backward pass into the gradients of inputs and of "
       "weights, and fill the bubble with the latter. `parallel.schedule = \"zb-h1\"` or "
       "\"zb-v\" sets them."},
      {"ZeRO",
       {"zero redundancy optimizer", "distributed optimizer"},
       "Data-parallel ranks shard what they would otherwise hold twice: the optimizer's state "
       "(ZeRO-1), gradients too (ZeRO-2), weights too (ZeRO-3, FSDP). `parallel.zero` sets the "
       "stage."},
  };
  return all;
}

const Term* find_term(std::string_view name) {
  const std::string wanted = plain_name(name);
  const auto is_wanted = [&](std::string_view word) { return plain_name(word) == wanted; };
  for (const Term& term : glossary()) {
    if (is_wanted(term.name) || std::any_of(term.also.begin(), term.also.end(), is_wanted)) {
      return &term;
    }
  }
  return nullptr;
}

} // namespace mh
