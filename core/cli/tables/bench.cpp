/// Commands that measure this machine and what a recipe does on it.

#include "core/cli/tables/tables.hpp"

namespace mh {

namespace {

const Option kBenchDevice{"--device", "NAME", "a device: cuda (cpu, or the recipe's)"};

} // namespace

std::vector<Command> bench_commands() {
  return {
      {
          "bench",
          "Speed",
          "measures this machine for plans",
          "Trains small models of several widths and lengths for some steps, notes how long each "
          "operation takes, and measures collectives between two processes: about a minute, on a "
          "machine that does nothing else. The rates are written to machine.toml in the user's "
          "folder ($XDG_DATA_HOME/megahost), and `megahost plan` takes them for this machine's "
          "CPU. The words below measure one thing each, and write nothing.",
          {},
          {{"--calibrate", "", "does so"}},
          {{"megahost bench --calibrate", ""},
           {"megahost plan recipes/quickstart.lua", "by what was measured"}},
      },
      {
          "bench step",
          "Speed",
          "trains some steps of a recipe and says how fast they are",
          "Three steps first, which are not counted; then the median of the measured ones. Model "
          "FLOPs are 6 per parameter and token and those of causal attention; the peak is a GEMM "
          "of large matrices, measured at the same time. Nothing is written.",
          {kRecipe},
          {
              kSet,
              kBenchDevice,
              {"--steps", "N", "steps to measure (10)"},
              kScale,
              kPlugin,
              kJson,
          },
          {
              {"megahost bench step recipes/quickstart.lua", ""},
              {"megahost bench step recipes/gpt2_124m.toml --set batch.global=4 --set "
               "precision=bf16 --steps 5 --json",
               ""},
          },
      },
      {
          "bench data",
          "Speed",
          "how fast a recipe's corpus gives samples",
          "",
          {kRecipe},
          {kSet, kScale, kPlugin, kJson},
          {{"megahost bench data recipes/quickstart.lua", ""}},
      },
      {
          "bench gemm",
          "Speed",
          "rates of the GEMMs that training needs: ours and LibTorch's",
          "",
          {},
          {kBenchDevice, kJson},
          {{"megahost bench gemm", ""},
           {"OMP_NUM_THREADS=1 megahost bench gemm", "one thread"},
           {"megahost bench gemm --device cuda", "shapes of an 8B model"}},
      },
      {
          "bench attention",
          "Speed",
          "rates of causal attention, forward and backward: ours and LibTorch's",
          "",
          {},
          {kBenchDevice, kJson},
          {{"megahost bench attention", ""}},
      },
      {
          "bench masks",
          "Speed",
          "errors of attention under each kind of mask, next to float64",
          "",
          {},
          {kBenchDevice, kJson},
          {{"megahost bench masks --device cuda", ""}},
      },
      {
          "bench memory",
          "Speed",
          "rates of copies, fills and sums in each cache and beyond",
          "",
          {},
          {kBenchDevice, kJson},
          {{"megahost bench memory", ""}},
      },
      {
          "bench gpu",
          "Speed",
          "the first half hour on a GPU: what is wrong, then how fast the rest is",
          "Runs commands of megahost one after the other, and stops at nothing: losses of the "
          "quickstart against the CPU's in fp32, bf16 and fp8, the same bits twice, layouts; rates of "
          "copies, GEMMs, attention and operators; training steps of 124M to 8B next to their plans and "
          "to the share of the peak that they should reach; a profile. At most 25 minutes on one GPU. "
          "DIR gets each command's output and log, report.json and report.html; it must be new or "
          "empty. Status 1 if anything is not as it should be.",
          {},
          {
              {"-o", "DIR", "folder for the results; required"},
              {"--on", "NAME", "machine whose plans steps are compared with (h100)"},
              {"--device", "NAME", "device plugin (cuda)"},
              {"--set", "KEY=VALUE", "overrides a key of the runs whose losses are compared", true},
              {"--only", "NAME", "the steps whose names begin so", true},
          },
          {{"megahost bench gpu -o first-hour --on h100", ""},
           {"megahost bench gpu -o again --only losses", "the losses alone"}},
      },
      {
          "bench comm",
          "Speed",
          "bandwidth and latency of the collectives along each axis of a layout",
          "Starts the recipe's ranks on this machine, or takes part in those that torchrun, srun "
          "or mpirun started, and measures what its mesh axes carry, by size, and the time that "
          "megahost itself adds to each call.",
          {kRecipe},
          {
              {"--nproc", "N", "ranks, for parallel.data = \"auto\""},
              {"--threads", "", "ranks are threads of this process, instead of processes"},
              kRank,
              kWorldSize,
              kMaster,
              kLocalRank,
              kSet,
              kBenchDevice,
              kPlugin,
              kJson,
          },
          {
              {"megahost bench comm recipes/quickstart.lua --nproc 2 --set batch.micro=2",
               "data parallel"},
              {"megahost bench comm recipes/quickstart.lua --set parallel.tensor=2 --set "
               "model.heads=8 --threads",
               ""},
          },
      },
      {
          "bench ops",
          "Speed",
          "time and rates of every other operator of ours",
          "",
          {},
          {kBenchDevice, kJson},
          {{"megahost bench ops", ""}},
      },
  };
}

} // namespace mh
