/// Commands that explain.

#include "core/cli/tables/tables.hpp"

namespace mh {

std::vector<Command> help_commands() {
  return {
      {
          "help",
          "Help",
          "says more about a command, a plugin, a recipe's key, a concept or a term",
          "Concepts: recipes, layouts, precision, checkpoints, plugins, exit codes, environment "
          "variables. Terms: FSDP, MFU, ring attention and others of the field, with the keys that "
          "set them; megahost help terms lists them.",
          {{"TOPIC...", "such as run, adamw, optimizer.lr, batch, FSDP or \"exit codes\""}},
          {kPlugin},
          {{"megahost help optimizer.lr", ""},
           {"megahost help FSDP", ""},
           {"megahost help model.depth --plugin mine.so",
            "a key of a plugin that is not installed"}},
      },
      {
          "doctor",
          "Help",
          "what this machine and installation can do, and what to mend",
          "Processor, memory, disk, GPUs, LibTorch, CUDA libraries and plugins, and the measured "
          "speed of GEMMs and copies. A sentence says what to do about whatever is missing or slow. "
          "With --ranks, or started by torchrun, srun or mpirun, it compares the ranks of a job "
          "instead: GEMMs, copies, the links between them, disk, clocks and builds. Ranks that are "
          "unlike the others are named with their hosts, and the status is 4.",
          {},
          {
              {"--ranks", "N", "starts N ranks on this machine and compares them"},
              {"--on",
               "NAME",
               "with --ranks: compares them with what plans for this machine count on, too: h100, ..."},
              {"--device", "NAME", "device plugin of --ranks, cpu unless given"},
              {"--disk", "DIR", "folder where each of --ranks writes a file, . unless given"},
              kRank,
              kWorldSize,
              kMaster,
              kLocalRank,
              kJson,
              kPlugin,
          },
          {{"megahost doctor", ""},
           {"megahost doctor --ranks 4", ""},
           {"srun --ntasks-per-node 8 megahost doctor --device cuda --disk /fsx --on h100",
            "before a job"}},
      },
      {
          "docs",
          "Help",
          "writes reference pages in Markdown",
          "A page per command, plugin, concept and SDK header, and one for all keys of a recipe. "
          "Pages that it wrote before and that nothing belongs to any more are removed.",
          {},
          {{"-o", "DIR", "folder of the pages, instead of docs/reference"},
           {"--man", "", "prints the manual page megahost(1) instead"},
           kPlugin},
          {{"megahost docs -o docs/reference", ""}, {"megahost docs --man | man -l -", ""}},
      },
  };
}

} // namespace mh
