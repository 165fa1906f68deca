#include "core/cli/topics.hpp"

#include "core/cli/glossary.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

namespace mh {

namespace {

constexpr std::array<ExitStatus, 7> kExitStatuses{{
    {0, "done"},
    {exit_code::other, "another failure, or a bug"},
    {exit_code::recipe, "a recipe or the command line"},
    {exit_code::memory, "memory: less work per pass is needed"},
    {exit_code::communication, "communication between ranks"},
    {exit_code::data, "data: corpora, tokenizers, checkpoints, the disk"},
    {exit_code::numbers, "numbers: a loss or gradient that is not finite"},
}};

constexpr auto kVariables = std::to_array<Variable>({
    {"MEGAHOST_PLUGIN_PATH", "folders with plugins, separated by colons, searched first"},
    {"MEGAHOST_RECIPE_PATH",
     "folders with recipes and presets, separated by colons, searched first"},
    {"XDG_DATA_HOME",
     "the user's plugins lie in its megahost/plugins-1, and what bench --calibrate measured in its "
     "megahost/machine.toml (~/.local/share unless set)"},
    {"MEGAHOST_CPU_LEVEL",
     "instruction set of our kernels, instead of the best that the CPU has: base, avx2, ..."},
    {"MEGAHOST_GEMM",
     "who multiplies fp32 matrices: own (our kernel), libtorch, or auto, the faster of both for "
     "each GEMM of a layer, which is measured once and kept in megahost/gemm.json next to "
     "machine.toml; generate and eval --ids measure nothing: what is not kept there is own"},
    {"OMP_NUM_THREADS", "threads of one rank's operations, instead of one per core"},
    {"OMP_WAIT_POLICY", "what threads do that wait; unless set they spin briefly and then sleep"},
    {"MEGAHOST_RANK",
     "rank of this process, next to MEGAHOST_WORLD_SIZE and its like; the variables of torchrun, "
     "Open MPI, PMI and Slurm say the same"},
    {"MASTER_ADDR", "host of rank 0, next to MASTER_PORT, where the launcher does not know it"},
    {"GLOO_SOCKET_IFNAME", "network interface that ranks talk over"},
    {"MEGAHOST_TERMINATION_LOG",
     "file for the termination message of a pod, instead of /dev/termination-log"},
    {"NO_COLOR", "any value: no colours"},
});

constexpr const char* kRecipes =
    R"(A recipe is a file that returns one table: the whole description of a run. TOML is the normal form; Lua says
the same with arithmetic, loops and reuse; JSON works too.

    model.use = "llama"
    model.layers = 4
    train.iters = 100

Values are laid on one another, the weakest first:

1. the default of each field
2. the presets that `preset` and `model.preset` name: sizes of a model, then layouts (`megahost presets` lists both)
3. the recipes that `extends` names, in their order
4. the recipe
5. what the program sets itself (`--scale`, `--run-dir`)
6. `--set KEY=VALUE`, as on `--set optimizer.lr=1e-3`

Tables merge and lists replace. A layer that changes the `use` of a section drops the fields of the plugin that was
there before. Facts of the machine fill in what says "auto"; no variable of the environment changes a number.

A relative path in a recipe file (`plugins`, data.paths, tokenizer.vocab, `checkpoint.dir`, ...) is meant from the folder of
that file; on the command line, from the working directory. A run that names no folder is kept in runs/NAME of the working
directory.

Sections with a `use` belong to a plugin, which declares their fields. An undeclared key is an error.

    megahost recipe check RECIPE            every problem at its line
    megahost recipe show RECIPE             every value
    megahost recipe explain RECIPE KEY      where a value comes from
    megahost help KEY                       what a key means, as in megahost help optimizer.lr
    megahost help TERM                      what a word of the field means, and the key that sets it
    megahost presets                        models and layouts that a recipe can start from
    megahost sweep RECIPE                   many values of its keys
    megahost recipe schema | recipe stubs   completion in an editor)";

constexpr const char* kLayouts =
    R"(A layout says how model and data are split over ranks, in the recipe's section `parallel`. A model says what its
dimensions mean, strategies say where they live: no model knows about ranks, and the same recipe gives the same loss
under every layout, to rounding.

    [parallel]
    tensor = 4          # each matrix and its heads over 4 ranks
    sequence = true     # between them, the tokens over the same ranks
    pipeline = 2        # layers over 2 stages
    context = 1         # long sequences over ranks
    expert = 1          # experts over the data-parallel ranks
    data = "auto"       # replicas of the model that share the batch
    zero = 1            # ZeRO: optimizer state is sharded over them (2: gradients, 3: weights too)

Stages of a pipeline hold consecutive layers, balanced by cost (`pipeline_layout`); each microbatch of a step passes
them all, in the order of `schedule`: gpipe, 1f1b, 1f1b over several `virtual_stages`, zb-h1, or zb-v, whose two
`virtual_stages` run down and up the stages. `megahost schedule RECIPE` draws what each stage does when.

Ranks of one replica are tensor x pipeline x context; `data` multiplies them. `batch.global` is divisible by `batch.micro`
times the data-parallel degree.

In `run` and `eval` a rank that the others wait for is named after `comm.hang_after` seconds (10) without progress, with its
host, and with the collective that the others wait in and its step; a line says so when it is back. After `comm.timeout`
seconds (600) the run ends with exit status 4, and says where each rank was.

`megahost run RECIPE --nproc N` runs N ranks on this machine; started by torchrun, mpirun or srun, each process takes its
rank from there. `--scale` trains the structure of a recipe, shrunk to this machine: to one rank, or with `--nproc 8` to a
layout of 8 that has the same axes.)";

constexpr const char* kPrecision = R"(`precision` is the number format of weights and activations.

- `fp32`: everything in 32 bits.
- `bf16`: weights and activations in bfloat16; gradients are summed and weights are updated in fp32.
- `fp16`: the same in float16, and the loss is multiplied by a scale so that small gradients do not vanish: Megatron's
  rule, with the fields of `fp16`. A step whose gradients overflow is skipped and moves no schedule.
- `fp8`: as bf16, but linear layers multiply in 8 bits, as Transformer Engine does: E4M3 forward, E5M2 for gradients,
  with the scales of `fp8`, one step older (delayed) or the tensor's own (current). Output layer and embeddings stay in
  bf16. Emulated where there is no hardware for it.
- `auto`: bf16 where the hardware multiplies it (AVX512-BF16, AMX, any CUDA device), else fp32.

Softmax, statistics of norms and the loss are computed in fp32 in each of them. `megahost doctor` says what this
machine multiplies, and how fast.)";

constexpr const char* kGuards =
    R"(A step's loss and gradient norm are judged before the update, the same on all ranks.

    guards = {
      nan = "rewind",     -- NaN or Inf in loss or gradients: stop (the default), skip or rewind
      spike = "skip",     -- a loss more than spike_z robust standard deviations above those before it; off by default
      spike_z = 8,
      skip_batches = 10,  -- left out after a rewind, beyond the bad batch
    }

`skip` goes on with the next batch; such a step changes no weight, no optimizer state and no schedule, and after
`guards.skips` of them in a row the run stops. `rewind` loads the newest checkpoint and goes on with the data behind the bad
batch, so that what was read since the checkpoint is not read again; after `guards.rewinds` of them the run stops. `stop`
ends the run with exit status 6. Every action is a line of the log, and a skipped step has no loss in metrics.jsonl.

Before any of it the step is done again. If its numbers are others then, it was a fault of a moment, and the step counts with them.
If not, data-parallel copies of the model exchange their samples: a rank that computes otherwise than its neighbours ends the run.

`megahost run RECIPE --debug` names the operation that made the first NaN or Inf, with its block, pass and
microbatch.)";

constexpr const char* kCheckpoints =
    R"(A run saves into its run folder (`checkpoint.dir`, "runs/NAME" unless given): every `checkpoint.interval` steps, at the
end, and when SIGINT or SIGTERM stops it.

    runs/NAME/recipe.toml       the resolved recipe, each value with its origin
    runs/NAME/metrics.jsonl     one record per step
    runs/NAME/checkpoints/      step folders: safetensors and a manifest of checksums

A step folder counts once its manifest is there, which is written last: a crash or a full disk loses nothing that was there.
It holds global tensors by their own names, so that another layout can load it. `--resume` goes on from the newest one
and ends with the weights of a run that never stopped, bit for bit on the same machine. Steps go on while a checkpoint
is written, but for the last one (`checkpoint.async`). `checkpoint.keep` limits how many stay, `keep_every`, `keep_best`,
`keep_for` and `keep_per` exempt some. `checkpoint.local_dir` and `local_interval` keep more frequent ones on the nodes. `megahost checkpoint` lists, inspects, verifies, compares and exports them. Where the recipe has `run_dir`, that is the
run folder, and `checkpoint.dir` holds the step folders alone: on another disk, or in an object store.

Where there is no checkpoint `--resume` is refused; `--resume=auto` begins a new run then, for launchers and batch systems
that start the same command again. A new run whose folder is taken goes to NAME-2, NAME-3, ...; `--resume` takes the last
that was started, or the folder that the command line names (`--run-dir`).

What decides a run's numbers must be that of the checkpoint: model, tokenizer, optimizer, data, global batch, seed,
precision. Each key that differs is named with both values. What may change: the length of the run, learning rate, weight
decay and schedule (`lr_schedule.on_resume` says whose count), layout, recompute, batch.micro, device, guards, log and
checkpoints; data files that have moved, if they hold the same. `megahost recipe explain RECIPE KEY` and `megahost plugins
show NAME` say it of each field. `--allow-change KEY` (or a section) goes on all the same and notes it in the log; a new run
with `--weights RUN` takes the weights alone, and the recipe's section `load` says what else. A tensor that has no place in the model is always refused.)";

constexpr const char* kLaunchers =
    R"(A run of several ranks is started by `--nproc`, or by any launcher; none of them needs a wrapper.

    megahost run RECIPE --nproc 8                       on this machine
    torchrun --no-python --nproc-per-node 8 megahost run RECIPE
    srun --ntasks-per-node 8 --kill-on-bad-exit=1 megahost run RECIPE
    mpirun -n 32 megahost run RECIPE
    hyperpodrun --no-python --nnodes 4 --nproc-per-node 8 megahost run RECIPE    in pods of SageMaker HyperPod

A pod of Kubeflow or of an Indexed Job starts the ranks of its node by itself. SIGTERM and SIGUSR1 save a checkpoint and stop.

Whoever starts processes in another way says each one's place by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or by
`--rank`, `--world-size` and `--master HOST:PORT`. A plugin reads another scheduler's environment; `launcher = { use = "NAME" }`
in the recipe names it. The recipe's degrees are compared with the number of ranks before anything starts.)";

constexpr const char* kHangs =
    R"(After `comm.hang_after` seconds (10) without progress the run names the rank that the others wait for, its host, the
step and the collective. After `comm.timeout` seconds (600) it ends with exit status 4 and says where each rank was. When
one rank fails, the others are ended and its message is the run's. Each rank leaves its stacks and last collectives in
RUN/hang/rank-N.txt.

`megahost run RECIPE --checking` compares what ranks should agree on at the boundaries of layers, and names the first tensor
that differs. `megahost check RECIPE` compares whole layouts with one rank.)";

constexpr const char* kPlugins =
    R"(What a recipe names with `use` comes from plugins: shared libraries that offer architectures, optimizers,
learning-rate schedules, corpora, tokenizers, recompute policies, strategies and devices. Only what a recipe names is
opened. They are looked for, in this order,

1. in the files of `--plugin FILE` and of the recipe's `plugins`
2. in the folders of MEGAHOST_PLUGIN_PATH
3. in the user's folder, ~/.local/share/megahost/plugins-1
4. with the program

and never in the current folder. A plugin that was built for another LibTorch or another megahost is refused before any
of its code runs.

    megahost plugins                        what is there
    megahost plugins show NAME              every field of one
    megahost plugins new DIR --kind KIND    one of your own
    megahost plugins check FILE             whether it is sound
    megahost plugins install DIR            into the user's folder; an archive, too
    megahost plugins rebuild                after an upgrade)";

std::string exit_text() {
  std::string text =
      "The exit status says what kind of thing went wrong; the message says what.\n\n";
  for (const ExitStatus& status : kExitStatuses) {
    text += "    " + std::to_string(status.code) + "  " + std::string(status.meaning) + "\n";
  }
  return text + "\n128 + n: stopped by signal n.";
}

std::string variables_text() {
  std::string text = "None of them says what is trained: that is in the recipe.\n\n";
  for (const Variable& variable : kVariables) {
    text += "- `" + std::string(variable.name) + "`: " + std::string(variable.doc) + "\n";
  }
  text.pop_back();
  return text;
}

std::string terms_text() {
  std::string text = "`megahost help TERM` prints one of them; case does not matter.\n\n";
  for (const Term& term : glossary()) {
    text += "- **" + std::string(term.name) + "**: " + std::string(term.text) + "\n";
  }
  text.pop_back();
  return text;
}

} // namespace

std::string plain_name(std::string_view name) {
  std::string text;
  for (const char c : name.substr(std::min(name.find_first_not_of('-'), name.size()))) {
    text +=
        c == '-' || c == '_' ? ' ' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return text;
}

std::span<const Topic> topics() {
  static const std::vector<Topic> all{
      {"recipes", "what a recipe is, and which of its layers wins", kRecipes},
      {"layouts", "how a model is split over ranks", kLayouts},
      {"precision", "number formats", kPrecision},
      {"guards", "what happens when a step's numbers are no good", kGuards},
      {"checkpoints", "what a run saves, and how it goes on", kCheckpoints, {"resume"}},
      {"launchers",
       "who starts the ranks of a run",
       kLaunchers,
       {"torchrun", "srun", "slurm", "mpirun", "mpi"}},
      {"hangs", "what is said of a rank that does not answer", kHangs, {"timeouts", "stalls"}},
      {"plugins", "where the parts of a recipe come from", kPlugins},
      {"exit codes", "what the exit status means", exit_text()},
      {"environment variables", "those that the program reads", variables_text()},
      {"terms", "words of the field, and the keys that set them", terms_text(), {"glossary"}},
  };
  return all;
}

const Topic* find_topic(std::string_view name) {
  const std::string wanted = plain_name(name);
  for (const Topic& topic : topics()) {
    if (topic.name == wanted ||
        std::find(topic.also.begin(), topic.also.end(), wanted) != topic.also.end()) {
      return &topic;
    }
  }
  return nullptr;
}

std::span<const ExitStatus> exit_statuses() {
  return kExitStatuses;
}

std::span<const Variable> variables() {
  return kVariables;
}

} // namespace mh
