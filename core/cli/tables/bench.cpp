/// Commands that measure this machine and what a recipe does on it.

#include "core/cli/tables/tables.hpp"

namespace mh {

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
          {kJson},
          {{"megahost bench gemm", ""}, {"OMP_NUM_THREADS=1 megahost bench gemm", "one thread"}},
      },
      {
          "bench attention",
          "Speed",
          "rates of causal attention, forward and backward: ours and LibTorch's",
          "",
          {},
          {kJson},
          {{"megahost bench attention", ""}},
      },
      {
          "bench memory",
          "Speed",
          "rates of copies, fills and sums in each cache and beyond",
          "",
          {},
          {kJson},
          {{"megahost bench memory", ""}},
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
          {kJson},
          {{"megahost bench ops", ""}},
      },
  };
}

} // namespace mh
