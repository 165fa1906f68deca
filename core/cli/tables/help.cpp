/// Commands that explain.

#include "core/cli/tables/tables.hpp"

namespace mh {

std::vector<Command> help_commands() {
  return {
      {
          "help",
          "Help",
          "says more about a command, a plugin, a recipe's key or a concept",
          "Concepts: recipes, layouts, precision, checkpoints, plugins, exit codes, environment "
          "variables.",
          {{"TOPIC...", "such as run, adamw, optimizer.lr, batch or \"exit codes\""}},
          {},
          {{"megahost help optimizer.lr", ""}, {"megahost help layouts", ""}},
      },
      {
          "doctor",
          "Help",
          "what this machine and installation can do, and what to mend",
          "Processor, memory, disk, GPUs, LibTorch, CUDA libraries and plugins, and the measured "
          "speed of GEMMs and copies. A sentence says what to do about whatever is missing or slow.",
          {},
          {kJson, kPlugin},
          {{"megahost doctor", ""}},
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
