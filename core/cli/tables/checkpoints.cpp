/// Commands on checkpoints.

#include "core/cli/tables/tables.hpp"

namespace mh {

namespace {

const Argument kSaved{
    "FOLDER",
    "run folder, or that of one step, such as runs/a/checkpoints/step-000000001000; or weights in a "
    "format that a plugin reads; in a storage NAME://PATH"};
const Option kStep{"--step", "N", "the checkpoint of this step of a run, instead of the newest"};
const Option kStorageSet{
    "--set",
    "storage.KEY=VALUE",
    "an option of the storage that FOLDER is in, as in a recipe; `megahost plugins show` lists them",
    true};
const Option kFormat{"--format", "NAME", "the folder's checkpoint format, where several know it"};

} // namespace

std::vector<Command> checkpoint_commands() {
  return {
      {
          "checkpoint ls",
          "Checkpoints",
          "the checkpoints of a run: step, size, tensors, files",
          "Only those that were committed are there: what a killed run left half-written is not.",
          {kSaved},
          {kFormat, kStorageSet, kPlugin, kJson},
          {{"megahost checkpoint ls runs/quickstart", ""}},
      },
      {
          "checkpoint inspect",
          "Checkpoints",
          "what a checkpoint holds: its run, layout and tensors",
          "A tensor is global, whatever ranks wrote it: its blocks are what each of them wrote, and "
          "any other layout reads them.",
          {kSaved},
          {kStep,
           {"--tensor", "PART", "only tensors with this in their name"},
           {"--all", "", "the optimizer's state, too"},
           kFormat,
           kStorageSet,
           kPlugin,
           kJson},
          {
              {"megahost checkpoint inspect runs/quickstart", ""},
              {"megahost checkpoint inspect runs/quickstart --step 100 --tensor embedding", ""},
          },
      },
      {
          "checkpoint verify",
          "Checkpoints",
          "reads every byte of a checkpoint and compares checksums",
          "Each damage is a line with file, tensor and block. The status is 0 for a checkpoint that "
          "is whole and 5 for a damaged one. Runs find out by themselves while they load, and take "
          "the one before.",
          {kSaved},
          {kStep, kFormat, kStorageSet, kPlugin, kJson},
          {
              {"megahost checkpoint verify runs/quickstart", ""},
              {"megahost checkpoint verify /mnt/copy/run && rm -r runs/run", "after a copy"},
          },
      },
      {
          "checkpoint diff",
          "Checkpoints",
          "the tensors in which two checkpoints differ, and by how much",
          "The status is 0 if all bits are the same, else 1.",
          {{"FOLDER", "run folder, or that of one step"},
           {"OTHER-FOLDER", "run folder, or that of one step"}},
          {kStep, {"--all", "", "the optimizer's state, too"}, kFormat, kStorageSet, kPlugin},
          {
              {"megahost checkpoint diff runs/quickstart runs/quickstart-2", ""},
              {"megahost checkpoint diff runs/a runs/b --step 100 --all", ""},
          },
      },
      {
          "checkpoint export",
          "Checkpoints",
          "writes a run's weights for other programs: Hugging Face's, PyTorch's, Megatron-LM's, "
          "NeuronX",
          "The Hugging Face folder has config.json, weights in safetensors, "
          "generation_config.json and the tokenizer's files where it has some: `transformers` "
          "loads it with from_pretrained. The run's layout does not matter, nor its size: one "
          "tensor at a time is in memory. A model that no config.json describes exactly is "
          "refused. --to dcp writes all tensors, the optimizer's state too, under the run's own "
          "names, for torch.distributed.checkpoint: megahost reads that folder as it does a "
          "run's. --to torch_dist writes weights under Megatron-LM's names, and Adam's moments "
          "and masters in a form that every layout of it reads. --to xser writes a Llama for NeuronX Distributed, a file of each tensor of "
          "each rank.",
          {kSaved},
          {{"-o", "DIR", "where the model goes"},
           {"--to",
            "FORMAT",
            "what it becomes (huggingface)",
            false,
            {"huggingface", "dcp", "torch_dist", "xser"}},
           kStep,
           {"--tensor", "RANKS", "for xser: tensor-parallel ranks (1)"},
           {"--pipeline", "RANKS", "for xser: pipeline stages (1)"},
           {"--writers", "RANKS", "for xser: ranks whose files are written at the same time (8)"},
           {"--dtype",
            "TYPE",
            "type of the weights (the run's precision; for dcp, as they are saved)",
            false,
            {"float32", "bfloat16", "float16"}},
           {"--model-type",
            "NAME",
            "model_type of its config.json, such as mistral (the first that describes it exactly)"},
           {"--file-size", "MB", "weights in a file at most (5000)"},
           kFormat,
           {"--set",
            "KEY=VALUE",
            "an option of the storage that FOLDER is in, or of the run's tokenizer, such as "
            "tokenizer.path=FILE",
            true},
           kPlugin},
          {
              {"megahost checkpoint export runs/quickstart -o models/quickstart", ""},
              {"megahost checkpoint export runs/large --step 2000 -o models/large --dtype bfloat16",
               ""},
              {"megahost checkpoint export runs/large --to dcp -o models/large-dcp", ""},
              {"megahost checkpoint export runs/large --to torch_dist -o megatron/large", ""},
              {"megahost checkpoint export runs/large --to xser --tensor 8 -o neuron/large", ""},
          },
      },
      {
          "checkpoint import",
          "Checkpoints",
          "writes a checkpoint in another format as a run's own",
          "Every tensor keeps its bits and its name, and each gets a checksum. What holds a run's "
          "state as well can be resumed; the recipe of its folder is copied. There is no command "
          "that writes a run's checkpoint for another layout, as every layout reads every one. "
          "Weights that have the names of Hugging Face or of Megatron-LM are read as they are: run "
          "--weights. With --recipe they are imported as the model that it describes, and with them "
          "the moments of Megatron-LM's torch_dist, its step and its samples, from which --resume "
          "goes on; the model is in memory then.",
          {kSaved},
          {{"-o", "DIR", "run folder that gets the checkpoint"},
           {"--recipe",
            "RECIPE",
            "recipe of the run that a folder of Hugging Face or Megatron-LM becomes"},
           kStep,
           {"--file-size", "MB", "tensors in a file at most (5000)"},
           kFormat,
           kStorageSet,
           kPlugin},
          {{"megahost checkpoint import models/large-dcp -o runs/again", ""},
           {"megahost checkpoint import megatron/checkpoints --recipe large.lua -o runs/large",
            ""}},
      },
      {
          "checkpoint average",
          "Checkpoints",
          "the mean of the weights of several checkpoints of a run",
          "Each weight is added up in float64 and rounded once to its own type; one tensor is in "
          "memory at a time. The result holds weights only: eval, generate and run --weights take "
          "it as they take a run.",
          {{"RUN", "run folder"}},
          {{"-o", "DIR", "folder that gets the mean, of the newest of the steps"},
           {"--last", "K", "the newest K checkpoints"},
           {"--steps", "STEPS", "the checkpoints of these steps: 800,900,1000"},
           {"--file-size", "MB", "tensors in a file at most (5000)"},
           kFormat,
           kStorageSet,
           kPlugin},
          {
              {"megahost checkpoint average runs/quickstart --last 3 -o runs/mean", ""},
              {"megahost checkpoint average runs/large --steps 800,900,1000 -o runs/mean", ""},
          },
      },
      {
          "checkpoint gc",
          "Checkpoints",
          "removes what a run's checkpoints do not need, and says how many bytes it was",
          "That is folders without a manifest, which a process left half-written or half-removed; "
          "folders whose step was saved again; files that no manifest names. With --keep old "
          "checkpoints, too, but never the newest that is whole. A run that goes on is refused.",
          {{"RUN", "run folder, or checkpoint.dir of a run that has ended"}},
          {{"--dry-run", "", "says what it would remove, and removes nothing"},
           {"--keep", "N", "the newest N checkpoints stay, others go (all stay)"},
           {"--keep-every", "M", "with --keep: those of steps that M divides stay, too"},
           {"--keep-best", "N", "with --keep: those of the N lowest validation losses stay, too"},
           {"--keep-for", "HOURS", "with --keep: those saved less than so long ago stay, too"},
           {"--keep-per",
            "HOURS",
            "with --keep: the first of each span of so many hours stays, too"},
           kStorageSet,
           kPlugin},
          {
              {"megahost checkpoint gc runs/quickstart --dry-run", ""},
              {"megahost checkpoint gc runs/large --keep 2 --keep-every 10000", ""},
          },
      },
  };
}

} // namespace mh
