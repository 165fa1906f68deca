// Commands about layouts of ranks.

#include "core/cli/tables/tables.hpp"

namespace mh {

std::vector<Command> layout_commands() {
  return {
      {
          "check",
          "Layouts",
          "whether layouts match the single-rank result",
          "Shrinks the recipe's model, or that of a plugin, to 4 layers of uneven sizes, and "
          "trains it under each layout on ranks that are threads: on samples of the recipe's "
          "corpus (ids modulo the small vocabulary) with the recipe's optimizer, its groups and "
          "clipping, an eps raised to 1e-3; with --model on made-up samples with SGD and with "
          "AdamW. Loss, every gradient, gradient norm, and the values after two steps are "
          "compared with those of one rank, as the norm of the difference over the tensor's norm "
          "(or over 1e-6 of the norm of all, if that is more). Allowed are 1e-12 in float64, 1e-5 "
          "in fp32, and about twice what rounding alone does to one rank. In the first step ranks "
          "compare at the boundaries of layers what they should agree on: the first tensor that "
          "differs is named. Status 1 if a layout differs.",
          {{"[RECIPE]", "recipe file: .lua, .toml or .json"}},
          {
              {"--model", "PLUGIN", "an architecture plugin, instead of a recipe"},
              {"--layouts",
               "LAYOUTS",
               "such as 'tensor=2; pipeline=2,data=2': keys of `parallel`, or whole keys; or all "
               "that the installed strategies make on --nproc ranks (the default)"},
              {"--nproc", "N", "most ranks of a layout, 8 unless given"},
              {"--precision",
               "LIST",
               "number formats, such as 'fp32,bf16': some of float64, fp32, bf16, fp16, fp8; all "
               "five unless given"},
              {"--processes", "", "ranks are processes, instead of threads"},
              kSet,
              kPlugin,
              kJson,
          },
          {
              {"megahost check recipes/quickstart.lua --layouts 'tensor=2; tensor=2,sequence=true'",
               ""},
              {"megahost check --model gpt --layouts all --nproc 4",
               "every layout of up to 4 ranks"},
              {"megahost check --plugin build/moe.so --model moe --layouts 'data=2,context=2'",
               "a plugin from outside the tree"},
          },
      },
      {
          "plan",
          "Layouts",
          "memory, time and cost of a run, before it is started",
          "Runs the recipe's own training step on LibTorch's Meta device, where tensors have sizes "
          "and no memory: one rank of each distinct pipeline stage, with groups that only note "
          "what they are asked for. Memory is what that step's tensors take, pass by pass in the "
          "schedule's order; FLOPs, bytes and collectives are those that it asks for. A machine's "
          "rates (presets/hardware.toml, and what training reaches of them in "
          "presets/calibration.toml) make seconds of that. Where the layout does not fit, or waits "
          "much, the changes that help most are looked for by planning them. For the folder of a "
          "run, the plan is compared with what the run measured. Status 1 if it does not fit.",
          {{"RECIPE", "recipe file: .lua, .toml or .json; or the folder of a run"}},
          {
              {"--on",
               "NAME",
               "machine: h100, p5.48xlarge, ..., or \"this\" for the CPU here; unless given "
               "what the device names: that CPU, or an h100 for cuda"},
              {"--gpus", "N", "ranks of the run, for parallel.data = \"auto\""},
              {"--tokens", "N", "length of the run in tokens, as 1T or 300B"},
              {"--imbalance",
               "X",
               "plans experts of which the busiest rank's get X times the mean's rows, too"},
              {"--search",
               "",
               "plans every layout of --gpus ranks: degrees, sequence, ZeRO, recomputation, micro "
               "batch, schedule. Shows the fastest for their memory, and the sets of the fastest "
               "that fits"},
              {"-o",
               "FILE",
               "writes the recipe of the fastest that --search finds: TOML, Lua or JSON, as the "
               "file's name ends"},
              {"--html",
               "FILE",
               "also writes a page: memory, time, pipeline, speed over the number of ranks"},
              kSet,
              kPlugin,
              kJson,
          },
          {
              {"megahost plan recipes/llama70b.lua --gpus 32 --on h100", ""},
              {"megahost plan recipes/gpt2_124m.lua --on a100 --tokens 10B",
               "one GPU, and the days of a run"},
              {"megahost plan recipes/llama70b.lua --gpus 64 --on p5.48xlarge --set "
               "parallel.data=auto --set recompute.use=full",
               "another way to fit"},
              {"megahost plan recipes/mixture.lua --on h100 --imbalance 2",
               "what uneven experts cost"},
              {"megahost plan recipes/llama70b.lua --search --gpus 64 --on h100",
               "the best ways to lay it on 64 GPUs"},
              {"megahost plan recipes/llama70b.lua --on h100 --html plan.html", "with pictures"},
              {"megahost plan runs/quickstart", "planned and measured"},
          },
      },
      {
          "mesh",
          "Layouts",
          "which ranks a layout puts together",
          "Each rank's coordinates and the members of every group, by node: ranks of one node are "
          "neighbours, as launchers number them. The order in which ranks are numbered is the "
          "recipe's parallel.order, from the fastest axis to the slowest.",
          {kRecipe},
          {
              {"--gpus-per-node", "N", "ranks on one machine, 8 unless given"},
              {"--nproc", "N", "ranks of the run, for parallel.data = \"auto\""},
              kSet,
              kPlugin,
              kJson,
          },
          {
              {"megahost mesh recipes/llama70b.lua", ""},
              {"megahost mesh recipes/quickstart.lua --set parallel.tensor=2 --set parallel.data=2 "
               "--gpus-per-node 2",
               ""},
          },
      },
      {
          "launch",
          "Layouts",
          "the job that trains a recipe on a cluster, planned and written",
          "Plans the recipe for the nodes, refuses a layout that does not fit, and writes what one "
          "submits: a script for sbatch or torchrun, or manifests for Kubernetes, with the recipe as it "
          "was planned, devices by the instance's row of presets/hardware.toml, where pods may run, and "
          "each variable of the environment with its reason. Every process runs `megahost run` itself: "
          "under srun, mpirun and torchrun one for a rank, in other pods one that starts the ranks of "
          "its node. A job that begins again goes on from its newest checkpoint. For FSx and buckets "
          "claims are made, and jobs on one pod fetch files and make a corpus of them. trainjob is written for "
          "one version of Kubeflow Trainer, mpijob needs sshd and Open MPI in the image, hyperpod "
          "needs hyperpodrun there. Instances of HyperPod begin with ml.; pods keep to its healthy nodes. Without --price cost is counted in node-hours.",
          {kRecipe},
          {
              {"--target",
               "TARGET",
               "who runs the job",
               false,
               {"slurm",
                "torchrun",
                "pytorchjob",
                "hyperpod",
                "trainjob",
                "job",
                "jobset",
                "mpijob"}},
              {"--nodes", "N", "nodes of the job, 1 unless given"},
              {"--instance",
               "TYPE",
               "their type: p5.48xlarge, ..., or a row of your own with `node`; several that are alike, "
               "separated by commas"},
              {"-o", "DIR", "folder that gets the files"},
              {"--preset",
               "NAME",
               "row of presets/launch.toml, whose options hold where none are typed"},
              {"--image", "IMAGE", "container image with megahost in it; Kubernetes needs one"},
              {"--name",
               "NAME",
               "name of the job's objects, made of the recipe's name unless given"},
              {"--namespace", "NAME", "namespace of Kubernetes"},
              {"--gpus-per-node", "N", "ranks of a node, all GPUs unless given"},
              {"--efa", "N", "EFA devices of a node, all unless given; 0: TCP"},
              {"--no-huge-pages", "", "asks for none for EFA's buffers"},
              {"--preflight", "", "each start compares the ranks before they train"},
              {"--copy-to",
               "STORE",
               "place in a store where the run folder is copied when the job ends, and from where a "
               "start on another node gets it back: s3://bucket/runs/a"},
              {"--libfabric",
               "VERSION",
               "version of libfabric in the image; before 1.18 it needs more variables"},
              {"--ofi-nccl",
               "VERSION",
               "version of the image's plugin for NCCL; before 1.7 it needs more variables"},
              {"--shared-memory", "GIB", "most that a pod's /dev/shm takes"},
              {"--volume",
               "KIND:NAME:PATH",
               "pvc: a claim that is there, fsx: one that is made for FSx for Lustre, s3: a bucket, "
               "host: a folder of each node",
               true},
              {"--env",
               "NAME=VALUE",
               "a further variable, as 'NAME=VALUE # reason' with a reason",
               true},
              {"--port", "NAME=NUMBER", "a port that pods name, such as one of metrics", true},
              {"--zone", "ZONE", "availability zone of the nodes", true},
              {"--hours", "H", "ends the job after that"},
              {"--restarts",
               "N",
               "times that a job whose node was lost begins again, 3 unless given"},
              {"--priority", "CLASS", "priority class of its pods"},
              {"--gang",
               "SCHEDULER",
               "starts all pods or none",
               false,
               {"volcano", "kueue", "coscheduling"}},
              {"--queue", "NAME", "queue of --gang; partition of Slurm"},
              {"--sbatch",
               "OPTION",
               "a further option of sbatch, as in --sbatch --account=me",
               true},
              {"--api",
               "VERSION",
               "version of Kubeflow Trainer: 2.0, 2.1, 2.2 or 2.3, the newest unless given"},
              {"--tensorboard",
               "IMAGE",
               "also shows the run's event files, by this image, at port 6006"},
              {"--fetch", "URL", "also writes a job that fetches this file", true},
              {"--fetch-to", "DIR", "where it puts files, a folder on a volume"},
              {"--prepare",
               "INPUT",
               "also writes a job that makes a corpus of it, by the recipe's tokenizer",
               true},
              {"--prepare-to", "PREFIX", "where that corpus goes"},
              {"--prepare-options", "WORDS", "further options of `data prepare`"},
              {"--tokens", "N", "length of the run in tokens, as 1T; the recipe's unless given"},
              {"--price", "USD", "price of a node for an hour"},
              {"--diff",
               "",
               "writes nothing and shows what would change in DIR; status 1 if something does"},
              {"--submit",
               "",
               "also hands it to sbatch or kubectl; --submit=getdata and =prepdata the jobs of the data",
               false,
               {"train", "getdata", "prepdata"}},
              {"--context", "NAME", "cluster of kubectl's configuration"},
              kSet,
              kPlugin,
          },
          {
              {"megahost launch recipes/llama70b.lua --target slurm --nodes 4 --instance p5en.48xlarge -o "
               "job",
               "then: sbatch job/train.sbatch"},
              {"megahost launch recipes/llama70b.lua --target pytorchjob --nodes 4 --instance "
               "p5en.48xlarge --image registry/megahost:1 --volume pvc:fsx-claim:/fsx --set "
               "checkpoint.dir=/fsx/runs/llama70b -o job",
               "then: kubectl apply -f job/train.yaml"},
              {"megahost launch recipes/llama70b.lua --target jobset --nodes 4 --instance "
               "p5en.48xlarge --image registry/megahost:1 --gang kueue --queue research --hours 48 -o "
               "job",
               "admitted whole, for two days"},
              {"megahost launch recipes/llama70b.lua --target slurm --nodes 4 --instance p5en.48xlarge -o "
               "job --diff",
               "what has changed since"},
          },
      },
      {
          "program",
          "Layouts",
          "a recipe's training step as modules of StableHLO",
          "Records the recipe's own training step on LibTorch's Meta device as the operators that it "
          "calls. DIR/pass.mlir is the forward and backward pass of one microbatch, DIR/close.mlir "
          "what follows the last one: sums over ranks, gradient norm, clipping and update. Where "
          "passes compute with other tensors than a checkpoint has (rounded ones, or parts of other "
          "ranks), DIR/open.mlir makes them once a step. DIR/step.json names inputs and outputs: the "
          "tensors of a checkpoint, the arrays of a microbatch, learning rate, weight decay and the "
          "update's number. The numbers are those of a run on the CPU (checked on XLA's CPU plugin; "
          "no Trainium or TPU has run them). Ranks of a layout are the modules' replicas. Without "
          "pipelines, and with experts of one capacity (model.capacity_pad) alone.",
          {kRecipe},
          {
              {"-o", "DIR", "folder for the modules; required"},
              {"--precision",
               "FORMAT",
               "instead of the recipe's, float64 too",
               false,
               {"float64", "fp32", "bf16"}},
              {"--narrow", "", "float32 and int32 in place of 64 bits, as for Trainium"},
              {"--scan", "", "layers that are alike as a loop, as device.scan has them"},
              {"--compile",
               "",
               "also compiles every step of the run for the recipe's device; device.cache keeps what "
               "comes out for the run"},
              kSet,
              kScale,
              kPlugin,
          },
          {
              {"megahost program recipes/quickstart.lua -o quickstart.program", ""},
              {"megahost program recipes/quickstart.lua -o quickstart.program --compile --set "
               "device.use=pjrt --set device.plugin=libpjrt.so --set device.cache=cache",
               "before the run"},
          },
      },
      {
          "schedule",
          "Layouts",
          "draws what each pipeline stage does when, and the time it waits",
          "The recipe's schedule over its layout of layers, with its number of microbatches; the "
          "options try others. The lists are proved first: complete, in order, within the memory "
          "that the schedule promises, free of deadlock. A pass takes as long as its layers' "
          "FLOPs, a backward pass twice as long as a forward one, a transfer no time. In the "
          "picture letters are microbatches: small forward, capital backward, + weight gradients "
          "that were put off. The bubble is the time without work: over the time with work, as the "
          "papers say it, and as a share of the step.",
          {kRecipe},
          {
              {"--stages", "N", "pipeline stages, instead of parallel.pipeline"},
              {"--virtual", "V", "chunks a stage, instead of parallel.virtual_stages"},
              {"--microbatches", "M", "microbatches of a step, instead of the recipe's"},
              {"--schedule", "NAME", "instead of parallel.schedule: gpipe, 1f1b, zb-h1, zb-v, ..."},
              {"--svg", "FILE", "writes a picture instead"},
              kSet,
              kPlugin,
              kJson,
          },
          {
              {"megahost schedule recipes/llama70b.lua", ""},
              {"megahost schedule recipes/quickstart.lua --stages 4 --microbatches 8", ""},
              {"megahost schedule recipes/quickstart.lua --stages 2 --virtual 2 --microbatches 4 "
               "--svg schedule.svg",
               "interleaved, as a picture"},
          },
      },
  };
}

} // namespace mh
